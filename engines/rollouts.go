package engines

import (
	"bufio"
	"encoding/json"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// RolloutsFile is the name of the file with the rollouts that a job keeps: a Rollout as JSON in
// each line, in the order of the training.
const RolloutsFile = "rollouts.jsonl"

// Limits of the rollouts that a job keeps.
const (
	MaxRolloutsBytes = 8 << 20 // maximum size of the rollouts file, in bytes
	// MaxStepRolloutsBytes is the maximum size of the rollouts of a step or an evaluation, in
	// bytes; the first ones are kept.
	MaxStepRolloutsBytes = 1 << 20
	maxRolloutText       = 16 << 10 // maximum size of a response, and of a row as JSON, in bytes
	maxRolloutReason     = 2 << 10  // maximum size of the reason of a score, in bytes
	maxRolloutMetrics    = 32       // maximum number of metrics of a score
	maxMetricName        = 128      // maximum size of a metric's name, in bytes
)

// A Rollout is a response that the model in training has generated for a row of the dataset, with
// its score.
type Rollout struct {
	// Step is the first step that trains on the response. For an evaluation, it is the number of
	// completed steps.
	Step       int                `json:"step"`
	Epoch      float64            `json:"epoch"` // number of completed epochs when the response was generated
	Time       time.Time          `json:"time"`
	Evaluation bool               `json:"evaluation,omitempty"` // the row is held out from the training
	Row        int                `json:"row"`                  // number of the row in its dataset, from 1
	Candidate  int                `json:"candidate"`            // number of the response to the row, from 1
	Input      json.RawMessage    `json:"input"`                // row of the dataset: messages and other fields
	Response   string             `json:"response"`
	Score      float64            `json:"score"` // score of the response; 0 if it is not Valid
	Valid      bool               `json:"valid"`
	Reason     string             `json:"reason,omitempty"`
	Metrics    map[string]float64 `json:"metrics,omitempty"`
	Truncated  bool               `json:"truncated,omitempty"` // a text was shortened to its maximum size
}

// A RolloutRecorder receives all rollouts of a step before the step, and all rollouts of an
// evaluation after the evaluation. A training that resumes from a checkpoint passes the rollouts of
// the steps after the checkpoint again. The recorder is called from the same goroutine as the
// TrainWatcher.
type RolloutRecorder func([]Rollout)

// NewRollout returns the rollout of a row with the evaluator's score. The last message of the row
// is the response. NewRollout shortens long texts. The caller sets the fields from Step to
// Candidate.
func NewRollout(row map[string]any, score Score) Rollout {
	r := Rollout{Valid: score.Valid && score.Value >= 0 && score.Value <= 1}
	input := maps.Clone(row)
	if messages, _ := row["messages"].([]any); len(messages) > 0 {
		last := len(messages) - 1
		message, _ := messages[last].(map[string]any)
		r.Response, _ = message["content"].(string)
		input["messages"] = messages[:last]
	}
	if r.Valid {
		r.Score = score.Value
	}
	r.Response = r.shorten(r.Response, maxRolloutText)
	r.Reason = r.shorten(score.Reason, maxRolloutReason)
	r.Input = r.shortenRow(input)
	for _, name := range slices.Sorted(maps.Keys(score.Metrics)) {
		value := score.Metrics[name]
		switch {
		case math.IsNaN(value), math.IsInf(value, 0):
		case len(r.Metrics) == maxRolloutMetrics, len(name) > maxMetricName:
			r.Truncated = true
		default:
			if r.Metrics == nil {
				r.Metrics = map[string]float64{}
			}
			r.Metrics[name] = value
		}
	}
	return r
}

// ReadRollouts calls visit with every rollout in a rollouts file and with its line, until visit
// returns false. It skips lines that are not rollouts, and all that follows the first
// MaxRolloutsBytes.
func ReadRollouts(file io.Reader, visit func(r *Rollout, line []byte) bool) error {
	lines := bufio.NewScanner(io.LimitReader(file, MaxRolloutsBytes))
	lines.Buffer(nil, MaxStepRolloutsBytes)
	for lines.Scan() {
		var r Rollout
		if json.Unmarshal(lines.Bytes(), &r) == nil && r.Row > 0 && !visit(&r, lines.Bytes()) {
			return nil
		}
	}
	return lines.Err()
}

// shorten returns the beginning of text, at most limit bytes. If it shortens the text, it sets
// r.Truncated.
func (r *Rollout) shorten(text string, limit int) string {
	if len(text) <= limit {
		return text
	}
	r.Truncated = true
	const ellipsis = "…"
	end := limit - len(ellipsis)
	for end > 0 && !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end] + ellipsis
}

// shortenRow returns a row as JSON of at most maxRolloutText bytes. It shortens the texts in the
// row. If that does not suffice, it keeps only the end of the last message.
func (r *Rollout) shortenRow(row map[string]any) json.RawMessage {
	for _, limit := range []int{math.MaxInt, 4 << 10, 1 << 10, 256} {
		if data, err := json.Marshal(r.shortenTexts(row, limit)); err == nil && len(data) <= maxRolloutText {
			return data
		}
		r.Truncated = true
	}
	rest := map[string]any{}
	if messages, _ := row["messages"].([]any); len(messages) > 0 {
		message, _ := messages[len(messages)-1].(map[string]any)
		text, _ := message["content"].(string)
		role, _ := message["role"].(string)
		rest["messages"] = []any{map[string]any{"role": r.shorten(role, 64), "content": r.shorten(text, 1<<10)}}
	}
	data, _ := json.Marshal(rest) // cannot fail, because the values are texts
	return data
}

// shortenTexts returns a copy of a JSON value in which texts have at most limit bytes.
func (r *Rollout) shortenTexts(value any, limit int) any {
	switch v := value.(type) {
	case string:
		return r.shorten(strings.ToValidUTF8(v, "\uFFFD"), limit)
	case []any:
		out := make([]any, len(v))
		for i := range v {
			out[i] = r.shortenTexts(v[i], limit)
		}
		return out
	case map[string]any:
		out := make(map[string]any, len(v))
		for name := range v {
			out[name] = r.shortenTexts(v[name], limit)
		}
		return out
	}
	return value
}

package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/spf13/cobra"
)

const (
	maxSamples     = 16 // maximum number of responses to a row
	previewSenders = 4  // number of rows that are sent to the model concurrently
)

// A previewRun is a preview in progress. It first sends the rows to the model, if there is one, and
// then scores the responses in batches, because one request may take at most a minute.
type previewRun struct {
	*previewFlags
	cmd       *cobra.Command
	client    *client
	evaluator map[string]any

	rows    []int // row number of each sample, from 1
	samples []any // what the evaluator scores: lines of the file, or rows with a response of the model
	results []map[string]any
}

// sample sets r.samples and r.rows. Without a model, each line is a sample. With one, each response
// to a row is a sample.
func (r *previewRun) sample(lines []string) error {
	if r.model == "" {
		for i, line := range lines {
			r.rows, r.samples = append(r.rows, i+1), append(r.samples, line)
		}
		return nil
	}
	model, err := resolveModel(r.cmd.Context(), r.cmd, r.client, r.model)
	if err != nil {
		return err
	}
	rows := make([]*heldOutRow, len(lines))
	for i, line := range lines {
		if rows[i], err = r.parse(i+1, line); err != nil { // all rows are parsed before one is sent
			return err
		}
	}
	if err := r.send(rows, slices.Repeat([]string{model}, r.perRow)); err != nil {
		return err
	}
	for _, row := range rows {
		for i := range row.responses {
			r.rows, r.samples = append(r.rows, row.number), append(r.samples, row.sample(i))
		}
	}
	return nil
}

func (r *previewRun) parse(number int, line string) (*heldOutRow, error) {
	row := &heldOutRow{number: number}
	fields := json.NewDecoder(strings.NewReader(line))
	fields.UseNumber()
	if err := fields.Decode(&row.fields); err != nil {
		return nil, fmt.Errorf("row %d of %s is not a JSON object: %w", number, r.file, err)
	}
	if row.split(); row.prompt == "" && len(row.messages) == 0 {
		return nil, fmt.Errorf("row %d of %s has neither a prompt nor messages", number, r.file)
	}
	return row, nil
}

// send sends rows to models, up to previewSenders rows concurrently. After an error it sends no
// further row.
func (r *previewRun) send(rows []*heldOutRow, models []string) error {
	ctx, cancel := context.WithCancelCause(r.cmd.Context())
	defer cancel(nil)
	var next, done atomic.Int64
	var senders sync.WaitGroup
	var drawing sync.Mutex
	r.progress("sampling row 1 of %d", len(rows))
	for range min(previewSenders, len(rows)) {
		senders.Go(func() {
			for i := next.Add(1) - 1; i < int64(len(rows)) && ctx.Err() == nil; i = next.Add(1) - 1 {
				if err := rows[i].send(ctx, r.client, models, r.maxTokens, r.temperature); err != nil {
					cancel(fmt.Errorf("row %d of %s: %w", rows[i].number, r.file, err))
					return
				}
				drawing.Lock()
				r.progress("sampled %d of %d rows", done.Add(1), len(rows))
				drawing.Unlock()
			}
		})
	}
	senders.Wait()
	r.progress("")
	return context.Cause(ctx)
}

// score scores all samples, in batches of maxPreviewRows.
func (r *previewRun) score() error {
	defer r.progress("")
	// Without rows, one request is sent, whose error explains what is missing.
	for at := 0; at < max(len(r.samples), 1); at += maxPreviewRows {
		batch := r.samples[at:min(at+maxPreviewRows, len(r.samples))]
		if len(r.samples) > maxPreviewRows {
			r.progress("scored %d of %d responses", at, len(r.samples))
		}
		var answer struct {
			Results []map[string]any `json:"results"`
			Stdout  []string         `json:"stdout"`
			Stderr  []string         `json:"stderr"`
		}
		body := map[string]any{"evaluator": r.evaluator, "sampleData": batch}
		err := r.client.call(r.cmd.Context(), http.MethodPost, r.client.path("evaluators:previewEvaluator"), nil, body,
			&answer)
		if err != nil {
			return r.numbered(err, at)
		}
		if len(answer.Results) != len(batch) {
			return fmt.Errorf("the evaluator returned %d results for %d responses", len(answer.Results), len(batch))
		}
		r.results = append(r.results, answer.Results...)
		r.progress("")
		for i, texts := range [][]string{answer.Stdout, answer.Stderr} {
			for j, text := range texts {
				if text != "" && j < len(batch) {
					fmt.Fprintf(r.cmd.ErrOrStderr(), "row %d, %s:\n%s\n", r.rows[at+j], []string{"stdout", "stderr"}[i],
						strings.TrimRight(text, "\n"))
				}
			}
		}
	}
	return nil
}

// numbered returns err, an error for a batch of samples. start is the index of the batch's first
// sample. The violations of err name samples of the batch; numbered replaces them by the row
// numbers of the file.
func (r *previewRun) numbered(err error, start int) error {
	var e *apiError
	if !errors.As(err, &e) {
		return err
	}
	for i, v := range e.Violations {
		var sample int
		if n, _ := fmt.Sscanf(v.Field, "sampleData[%d]", &sample); n != 1 || start+sample >= len(r.rows) {
			continue
		}
		before, rest := fmt.Sprintf("sampleData[%d]", sample), ""
		rest = strings.TrimPrefix(v.Field, before)
		field := fmt.Sprintf("sampleData[%d]", r.rows[start+sample]-1) + rest
		e.Message = strings.Replace(e.Message, v.Field, field, 1)
		e.Violations[i].Field = field
	}
	return err
}

// print prints the scores and, with a model, the responses.
func (r *previewRun) print() error {
	columns := []column{{"SCORE", "score"}, {"VALID", "success"}, {"METRICS", "perMetricEvals"}, {"REASON", "reason"}}
	if r.model != "" {
		columns = slices.Insert(columns, 2, column{"RESPONSE", "response"})
		for i, sample := range r.samples {
			row, _ := sample.(map[string]any)
			r.results[i]["response"] = lastContent(row["messages"])
		}
	}
	if r.perRow > 1 {
		columns = slices.Insert(columns, 0, column{"ROW", "row"})
		for i := range r.results {
			r.results[i]["row"] = float64(r.rows[i])
		}
	}
	if err := printItems(r.cmd, noRows{"no rows", ""}, r.results, columns...); err != nil {
		return err
	}
	if r.perRow > 1 {
		mixed, all := r.mixed()
		fmt.Fprintf(r.cmd.ErrOrStderr(), "%d of %d rows have responses with different scores\n", mixed, all)
	}
	return nil
}

// mixed returns the number of rows whose valid scores differ, and the number of all rows.
func (r *previewRun) mixed() (mixed, all int) {
	scores := map[int][]any{}
	for i, result := range r.results {
		if row := r.rows[i]; result["success"] == true {
			scores[row] = append(scores[row], result["score"])
		} else if scores[row] == nil {
			scores[row] = []any{}
		}
	}
	for _, of := range scores {
		if slices.ContainsFunc(of, func(score any) bool { return score != of[0] }) {
			mixed++
		}
	}
	return mixed, len(scores)
}

// progress replaces the last line of progress on a terminal. An empty text removes the line. It
// prints nothing if standard error is not a terminal.
func (r *previewRun) progress(format string, args ...any) {
	if out := r.cmd.ErrOrStderr(); onTerminal(out) {
		redraw(out, fmt.Sprintf(format, args...))
	}
}

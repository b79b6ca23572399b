package torch

import (
	"anneal/domain"
	"anneal/engines"
)

// What the script says, one JSON object a line. A checkpoint and a score are
// answered by one line, the others by none.
const (
	saysStep       = "step"       // row
	saysCheckpoint = "checkpoint" // step, dir; answered by {} once it may go on
	saysScore      = "score"      // rows; answered by {scores}
	saysFault      = "fault"      // code, message: the last that it says
	saysResult     = "result"     // result: the last that it says
)

type message struct {
	Type    string           `json:"type"`
	Row     *engines.Metrics `json:"row"`
	Step    int              `json:"step"`
	Dir     string           `json:"dir"`
	Rows    []map[string]any `json:"rows"`
	Code    string           `json:"code"`
	Message string           `json:"message"`
	Result  *result          `json:"result"`
}

type result struct {
	Dir          string             `json:"dir"`
	Adapter      bool               `json:"adapter"`
	Steps        int                `json:"steps"`
	Tokens       int64              `json:"tokens"`
	StoppedEarly bool               `json:"stoppedEarly"`
	Reason       string             `json:"reason"` // why it stopped early
	Values       map[string]float64 `json:"values"`
}

// fault is the one that the script tells: the user's, or its own.
func (m message) fault() error {
	code := domain.Internal
	switch m.Code {
	case domain.InvalidArgument.String():
		code = domain.InvalidArgument
	case domain.FailedPrecondition.String():
		code = domain.FailedPrecondition
	}
	if m.Message == "" {
		m.Message = "the trainer's script failed without a reason"
	}
	return domain.Errorf(code, "%s", m.Message)
}

type body map[string]any

// A jsonOrder is an order as the script reads it.
type jsonOrder struct {
	Method      string                `json:"method"`
	BaseDir     string                `json:"baseDir"`
	AdapterDir  string                `json:"adapterDir"`
	DataFiles   []string              `json:"dataFiles"`
	EvalFiles   []string              `json:"evalFiles"`
	ResumeDir   string                `json:"resumeDir"`
	WorkDir     string                `json:"workDir"`
	Settings    engines.TrainSettings `json:"settings"`
	Seed        uint64                `json:"seed"`
	Parallelism int                   `json:"parallelism"`
}

func orderOf(o engines.TrainRequest) jsonOrder {
	if o.Method == "" {
		o.Method = engines.Supervised
	}
	return jsonOrder{Method: o.Method, BaseDir: o.BaseDir, AdapterDir: o.AdapterDir, DataFiles: o.DataFiles, EvalFiles: o.EvalFiles,
		ResumeDir: o.ResumeDir, WorkDir: o.WorkDir, Settings: o.Settings, Seed: o.Seed, Parallelism: o.Parallelism}
}

type jsonScore struct {
	Value   float64            `json:"value"`
	Valid   bool               `json:"valid"`
	Reason  string             `json:"reason"` // of one that is not valid
	Metrics map[string]float64 `json:"metrics"`
}

func scoresOf(scores []engines.Score) []jsonScore {
	all := make([]jsonScore, len(scores))
	for i, s := range scores {
		all[i] = jsonScore{s.Value, s.Valid, s.Reason, s.Metrics}
	}
	return all
}

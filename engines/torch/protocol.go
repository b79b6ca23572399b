package torch

import (
	"anneal/domain"
	"anneal/engines"
)

// Types of the messages of the training script, with the other fields that a message of each type
// has. The script sends each message as a JSON object in one line. After a message
// checkpointMessage or scoreMessage, it waits for the reply, which is also one line.
const (
	stepMessage       = "step"       // fields: row
	checkpointMessage = "checkpoint" // fields: step, dir; the reply is {}
	scoreMessage      = "score"      // fields: rows, numbers, step, epoch, evaluation; the reply is {scores}
	errorMessage      = "fault"      // fields: code, message; it is the last message
	resultMessage     = "result"     // fields: result; it is the last message
)

type message struct {
	Type    string           `json:"type"`
	Row     *engines.Metrics `json:"row"`
	Step    int              `json:"step"`
	Dir     string           `json:"dir"`
	Rows    []map[string]any `json:"rows"`
	Numbers []int            `json:"numbers"` // numbers of the rows in the dataset, from 1
	Epoch   float64          `json:"epoch"`
	Held    bool             `json:"evaluation"` // the rows are held out from the training
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
	Reason       string             `json:"reason"` // reason why the training stopped early
	Values       map[string]float64 `json:"values"`
}

// err returns the error that the script reports: with the script's code, or an Internal error.
func (m message) err() error {
	code := domain.Internal
	switch m.Code {
	case domain.InvalidArgument.String():
		code = domain.InvalidArgument
	case domain.FailedPrecondition.String():
		code = domain.FailedPrecondition
	}
	if m.Message == "" {
		m.Message = "the training script failed without an error message"
	}
	return domain.Errorf(code, "%s", m.Message)
}

type body map[string]any

// A trainRequest is an engines.TrainRequest as JSON.
type trainRequest struct {
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

func requestOf(r engines.TrainRequest) trainRequest {
	if r.Method == "" {
		r.Method = engines.Supervised
	}
	return trainRequest{
		Method: r.Method, BaseDir: r.BaseDir, AdapterDir: r.AdapterDir, DataFiles: r.DataFiles, EvalFiles: r.EvalFiles,
		ResumeDir: r.ResumeDir, WorkDir: r.WorkDir, Settings: r.Settings, Seed: r.Seed, Parallelism: r.Parallelism,
	}
}

type jsonScore struct {
	Value   float64            `json:"value"`
	Valid   bool               `json:"valid"`
	Reason  string             `json:"reason"` // why the score is invalid; "" if it is valid
	Metrics map[string]float64 `json:"metrics"`
}

func scoresOf(scores []engines.Score) []jsonScore {
	all := make([]jsonScore, len(scores))
	for i, s := range scores {
		all[i] = jsonScore{s.Value, s.Valid, s.Reason, s.Metrics}
	}
	return all
}

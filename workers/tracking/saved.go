package tracking

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"

	"anneal/domain"
)

// saved is the sender's durable state for a job, in a file beside the job's metrics. Before rows
// are sent, they are saved as Sending together with Sent, so that after a crash the same rows are
// sent again to the same position in the run.
type saved struct {
	Service string `json:"service"` // KIND=URL of the tracker; a new run begins when it changes
	Run     run    `json:"run"`
	Sent    int    `json:"sent"` // rows that the tracker has
	Step    int    `json:"step"` // step of the newest row that the tracker has
	Sending []row  `json:"sending,omitempty"`

	// A trainer job with keepAlive counts its steps from 1 again in each train step. Base is the last
	// step of the train steps before TrainStep, and Attempt the newest attempt of TrainStep.
	Base      int `json:"base,omitempty"`
	TrainStep int `json:"trainStep,omitempty"`
	Attempt   int `json:"attempt,omitempty"`

	Last  map[string]float64 `json:"last,omitempty"` // newest value of each metric
	Ended string             `json:"ended,omitempty"`
}

// endingOf returns a text that identifies one end of the job: a job that has failed or was
// cancelled can be resumed, and then ends again.
func endingOf(l *domain.JobLife) string { return l.State + "@" + strconv.Itoa(l.Attempt) }

// load reads the saved state of a job. It returns an empty state if none was saved, or if the state
// is that of another tracker.
func (s *Sender) load(ctx context.Context, key string) (state saved, err error) {
	file, err := s.Blobs.Get(ctx, key)
	if domain.CodeOf(err) == domain.NotFound {
		return saved{Service: s.Service.address}, nil
	}
	if err != nil {
		return state, err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		return state, err
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return state, domain.Errorf(domain.DataLoss, "%s is not valid JSON: %v", key, err)
	}
	if state.Service != s.Service.address {
		state = saved{Service: s.Service.address}
	}
	return state, nil
}

func (s *Sender) save(ctx context.Context, key string, state *saved) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	_, err = s.Blobs.Put(ctx, key, bytes.NewReader(data))
	return err
}

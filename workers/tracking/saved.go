package tracking

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strconv"

	"anneal/domain"
)

// saved is the durable state of a job's session, in a file beside the job's metrics. Rows are saved
// in Sending, together with Sent, before they are sent. So after a crash the same rows are sent
// again to the same place in the run.
type saved struct {
	// address of the tracker as KIND=URL; when the operator changes it, a new run begins
	Service string `json:"service"`
	Run     run    `json:"run"`
	Sent    int    `json:"sent"` // number of rows that the tracker has received
	Step    int    `json:"step"` // step of the newest row that the tracker has received
	Sending []row  `json:"sending,omitempty"`

	// A trainer job with keepAlive counts its steps from 1 again in each train step. Base is the
	// number of steps in all train steps before TrainStep, and Attempt the newest attempt of
	// TrainStep.
	Base      int `json:"base,omitempty"`
	TrainStep int `json:"trainStep,omitempty"`
	Attempt   int `json:"attempt,omitempty"`

	Last  map[string]float64 `json:"last,omitempty"` // newest value of each metric that was sent
	Ended string             `json:"ended,omitempty"`
}

// endingOf returns a text that identifies this end of a job. A job that has failed or was cancelled
// can be resumed, and then ends a second time.
func endingOf(l *domain.JobLife) string { return l.State + "@" + strconv.Itoa(l.Attempt) }

// load reads the saved state of a job. When there is none, or it belongs to another tracker, load
// returns an empty state.
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
		return state, domain.Errorf(domain.DataLoss, "the saved state of a tracker, %s, is not valid JSON: %v", key, err)
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

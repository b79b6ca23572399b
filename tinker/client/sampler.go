package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"

	"anneal/tinker"
)

// A Sampler samples from fixed weights. It is safe for concurrent use.
type Sampler struct {
	session *Session
	id      string
	seq     atomic.Int64
}

// Sampler returns a sampler of a checkpoint, if model is a tinker:// path, or of a base model.
func (s *Session) Sampler(ctx context.Context, model string) (*Sampler, error) {
	number := s.samplers.Add(1) - 1
	request := tinker.CreateSamplingSessionRequest{SessionID: s.id, SamplingSessionSeqID: &number}
	if strings.HasPrefix(model, "tinker://") {
		request.ModelPath = model
	} else {
		request.BaseModel = model
	}
	var created tinker.CreateSamplingSessionResponse
	if err := s.client.call(ctx, http.MethodPost, "create_sampling_session", request, &created); err != nil {
		return nil, fmt.Errorf("create a sampler of %s: %w", model, err)
	}
	return &Sampler{session: s, id: created.SamplingSessionID}, nil
}

// ID returns the ID of the sampling session.
func (s *Sampler) ID() string { return s.id }

// maxResubmissions is the maximum number of times that Sample submits a request again because the
// server no longer has its result.
const maxResubmissions = 3

// Sample generates samples, and waits for them. It sets the session and the sequence number of the
// request. At most as many calls as the server allows are in flight; the others wait.
func (s *Sampler) Sample(ctx context.Context, r tinker.SampleRequest) (tinker.SampleResponse, error) {
	select {
	case s.session.slots <- struct{}{}:
		defer func() { <-s.session.slots }()
	case <-ctx.Done():
		return tinker.SampleResponse{}, context.Cause(ctx)
	}
	r.SamplingSessionID, r.BaseModel, r.ModelPath = s.id, "", ""
	for i := 0; ; i++ {
		number := s.seq.Add(1) - 1
		r.SeqID = &number
		var submitted tinker.Submitted
		if err := s.session.client.call(ctx, http.MethodPost, "asample", r, &submitted); err != nil {
			return tinker.SampleResponse{}, fmt.Errorf("sample: %w", err)
		}
		out, err := newFuture(s.session.client, submitted.RequestID, decodeProto[tinker.SampleResponse]).Wait(ctx)
		var gone *Error
		if errors.As(err, &gone) && gone.StatusCode == http.StatusGone && i < maxResubmissions {
			continue
		}
		if err != nil {
			return out, fmt.Errorf("sample: %w", err)
		}
		return out, nil
	}
}

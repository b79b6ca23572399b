package api

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// A stream answers with server-sent events, data only, the last of which is
// [DONE]. Its header goes out with the first of them.
type stream struct {
	*call
	begun bool
}

// event sends one part.
func (s *stream) event(value any) error {
	s.begin()
	data, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Fprintf(s.w, "data: %s\n\n", data)
	}
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	return err
}

func (s *stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.w.Header().Set("Content-Type", "text/event-stream")
	s.w.Header().Set("Cache-Control", "no-store")
	s.w.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold the stream back
	s.w.WriteHeader(http.StatusOK)
}

// done ends a stream that is whole.
func (s *stream) done() error {
	s.begin()
	_, err := fmt.Fprint(s.w, "data: [DONE]\n\n")
	if err == nil {
		err = http.NewResponseController(s.w).Flush()
	}
	return ignoreGone(err)
}

// fail ends a stream that has begun with the error as its last event, and
// without [DONE]; before that it is an answer like any other.
func (s *stream) fail(err error) error {
	if !s.begun {
		return err
	}
	s.note(s.r, err)
	if s.ctx.Err() == nil {
		_, body := inferenceBody(errorOf(err), s.call.id)
		_ = s.event(body) // whoever it was for may be gone
	}
	return nil
}

// ignoreGone is nil: an answer that its client did not wait for is nobody's.
func ignoreGone(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

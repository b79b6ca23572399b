package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// A Stream responds with server-sent events, data only, the last of which is [DONE]. The header is
// sent with the first of them.
type Stream struct {
	*Call
	begun bool
}

// Event sends one part.
func (s *Stream) Event(value any) error {
	s.begin()
	data, err := json.Marshal(value)
	if err == nil {
		_, err = fmt.Fprintf(s.Writer, "data: %s\n\n", data)
	}
	if err == nil {
		err = http.NewResponseController(s.Writer).Flush()
	}
	return err
}

func (s *Stream) begin() {
	if s.begun {
		return
	}
	s.begun = true
	s.Writer.Header().Set("Content-Type", "text/event-stream")
	s.Writer.Header().Set("Cache-Control", "no-store")
	s.Writer.Header().Set("X-Accel-Buffering", "no") // a proxy must not hold the stream back
	s.Writer.WriteHeader(http.StatusOK)
}

// Done ends a complete stream.
func (s *Stream) Done() error {
	s.begin()
	_, err := fmt.Fprint(s.Writer, "data: [DONE]\n\n")
	if err == nil {
		err = http.NewResponseController(s.Writer).Flush()
	}
	return IgnoreGone(err)
}

// Fail ends a stream that has begun with the error as its last event, without [DONE]. Before the
// first event it returns the error.
func (s *Stream) Fail(err error) error {
	if !s.begun {
		return err
	}
	s.LogFailure(s.Request, err)
	if s.Ctx.Err() == nil {
		_, body := InferenceBody(ErrorOf(err), s.Call.ID)
		_ = s.Event(body) // the client may have disconnected
	}
	return nil
}

// IgnoreGone returns nil for errors of writing to a client that has disconnected.
func IgnoreGone(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

package request

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
)

// A Stream sends a response of server-sent events. The header of the response is sent with the
// first event. The caller must end the stream with Done, Fail or FailWith.
type Stream struct {
	*Call
	begun bool
}

// Event sends one event that has only data: the JSON of value.
func (s *Stream) Event(value any) error { return s.Named("", value) }

// Named sends one event of the type name with the JSON of value as data. If name is "", the event
// has no type.
func (s *Stream) Named(name string, value any) error {
	s.begin()
	data, err := json.Marshal(value)
	if err == nil && name != "" {
		_, err = fmt.Fprintf(s.Writer, "event: %s\n", name)
	}
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
	s.Writer.Header().Set("X-Accel-Buffering", "no") // makes nginx forward each event at once
	s.Writer.WriteHeader(http.StatusOK)
}

// Done ends a complete stream with an event whose data is [DONE], as in the OpenAI API.
func (s *Stream) Done() error {
	s.begin()
	_, err := fmt.Fprint(s.Writer, "data: [DONE]\n\n")
	if err == nil {
		err = http.NewResponseController(s.Writer).Flush()
	}
	return IgnoreGone(err)
}

// Fail ends a stream with the error err as the last event. If no event was sent yet, Fail sends
// nothing and returns err, which the caller can then send as an error response.
func (s *Stream) Fail(err error) error {
	_, body := InferenceBody(ErrorOf(err), s.Call.ID)
	return s.FailWith(err, "", body)
}

// FailWith is like Fail, but the last event has the type name and the data value.
func (s *Stream) FailWith(err error, name string, value any) error {
	if !s.begun {
		return err
	}
	s.LogFailure(s.Request, err)
	if s.Ctx.Err() == nil {
		_ = s.Named(name, value) // the client may have disconnected
	}
	return nil
}

// IgnoreGone returns nil for an error of a write to the response, because such an error means that
// the client has disconnected. It returns http.ErrNotSupported unchanged, because a writer that
// cannot flush is a bug.
func IgnoreGone(err error) error {
	if errors.Is(err, http.ErrNotSupported) {
		return err
	}
	return nil
}

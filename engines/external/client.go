package external

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"anneal/domain"
)

// A body is a request's JSON object.
type body map[string]any

const (
	maxAnswer = 64 << 20 // bytes of an answer that is not streamed
	maxError  = 64 << 10 // bytes of a refusal
	maxTold   = 500      // characters of it that are passed on
)

// send sends a request to the program at url; the answer's status is 200, and
// its body the caller's to close.
func (s *server) send(ctx context.Context, url, method, path string, b body) (*http.Response, error) {
	var content io.Reader
	if b != nil {
		data, err := json.Marshal(b)
		if err != nil {
			return nil, err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, url+path, content)
	if err != nil {
		return nil, err
	}
	request.Header.Set("Content-Type", "application/json")
	return s.do(request)
}

// do sends a request; the answer's status is 200, and its body the caller's to
// close.
func (s *server) do(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	request.Header.Set("Authorization", "Bearer "+s.key)
	response, err := s.http.Do(request)
	if err != nil {
		return nil, s.broken(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	if err != nil {
		return nil, s.broken(ctx, err)
	}
	return nil, refusal(response.StatusCode, data)
}

// ask sends a request and decodes the answer.
func (s *server) ask(ctx context.Context, method, path string, b body, out any) error {
	url, err := s.at()
	if err != nil {
		return err
	}
	return s.askAt(ctx, url, method, path, b, out)
}

func (s *server) askAt(ctx context.Context, url, method, path string, b body, out any) error {
	response, err := s.send(ctx, url, method, path, b)
	if err != nil {
		return err
	}
	return s.read(ctx, path, response, out)
}

// read decodes an answer, and closes it.
func (s *server) read(ctx context.Context, path string, response *http.Response, out any) error {
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxAnswer))
	if err != nil {
		return s.broken(ctx, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.Internal, "the server of the model answered %s with what is no JSON: %v", path, err)
	}
	return nil
}

// broken is what it means that a request broke off.
func (s *server) broken(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.life.Err() != nil {
		return errClosed()
	}
	var pathless interface{ Unwrap() error }
	if errors.As(err, &pathless) && pathless.Unwrap() != nil {
		err = pathless.Unwrap() // without the address, which is nobody's business
	}
	return domain.Errorf(domain.Unavailable, "the server of the model broke off (%v): send the request again", err)
}

// An apiError is how servers word a refusal: OpenAI's {error: {message}}, or
// the object itself.
type apiError struct {
	Message string `json:"message"`
	Param   string `json:"param"`
	Detail  any    `json:"detail"`
}

// refusal is the fault that a server's answer means.
func refusal(status int, data []byte) *domain.Error {
	var wrapped struct {
		apiError
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(data, &wrapped) // what is no JSON is told as it is
	told := wrapped.apiError
	if len(wrapped.Error) > 0 && json.Unmarshal(wrapped.Error, &told) != nil {
		_ = json.Unmarshal(wrapped.Error, &told.Message) // some give a bare string
	}
	message := told.Message
	if message == "" && told.Detail != nil {
		message = fmt.Sprint(told.Detail)
	}
	if message == "" {
		message = strings.TrimSpace(string(data))
	}
	message = short(message)
	if message == "" {
		message = "no reason was given"
	}
	if told.Param != "" {
		message = told.Param + ": " + message
	}
	switch {
	case status == http.StatusTooManyRequests:
		return domain.Errorf(domain.ResourceExhausted, "the server of the model is full: %s", message)
	case status == http.StatusServiceUnavailable:
		return domain.Errorf(domain.Unavailable, "the server of the model does not answer now: %s", message)
	case status == http.StatusNotImplemented:
		return domain.Errorf(domain.InvalidArgument, "the server of the model cannot do this: %s", message)
	case status >= 400 && status < 500:
		return domain.Errorf(domain.InvalidArgument, "the server of the model refuses the request: %s", message)
	}
	return domain.Errorf(domain.Internal, "the server of the model failed with status %d: %s", status, message)
}

func short(text string) string {
	if runes := []rune(strings.ToValidUTF8(text, "\uFFFD")); len(runes) > maxTold {
		return string(runes[:maxTold]) + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

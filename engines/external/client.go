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
	"anneal/engines"
)

// A body is the JSON body of a request to the server.
type body map[string]any

const (
	maxResponse = 64 << 20 // maximum size of a response that is not streamed, in bytes
	maxError    = 64 << 10 // maximum size of an error response, in bytes
	maxMessage  = 500      // maximum number of characters of a server's error message
)

// send sends a request with a JSON body to the server at url. It returns the response if its status
// is 200, and the caller closes its body. Any other status is an error.
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

// do sends a request. It returns the response if its status is 200, and the caller closes its body.
// Any other status is an error.
func (s *server) do(request *http.Request) (*http.Response, error) {
	ctx := request.Context()
	request.Header.Set("Authorization", "Bearer "+s.key)
	if trace := engines.TraceOf(ctx); trace.Parent != "" {
		request.Header.Set("Traceparent", trace.Parent)
		if trace.State != "" {
			request.Header.Set("Tracestate", trace.State)
		}
	}
	response, err := s.http.Do(request)
	if err != nil {
		return nil, s.connectionError(ctx, err)
	}
	if response.StatusCode == http.StatusOK {
		return response, nil
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxError))
	if err != nil {
		return nil, s.connectionError(ctx, err)
	}
	return nil, responseError(response.StatusCode, data)
}

// call sends a request with a JSON body, and decodes the response into out, unless out is nil.
func (s *server) call(ctx context.Context, method, path string, b body, out any) error {
	url, err := s.address()
	if err != nil {
		return err
	}
	return s.callAt(ctx, url, method, path, b, out)
}

func (s *server) callAt(ctx context.Context, url, method, path string, b body, out any) error {
	response, err := s.send(ctx, url, method, path, b)
	if err != nil {
		return err
	}
	return s.read(ctx, path, response, out)
}

// read decodes the JSON of a response into out, unless out is nil, and closes the response's body.
func (s *server) read(ctx context.Context, path string, response *http.Response, out any) error {
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse))
	if err != nil {
		return s.connectionError(ctx, err)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.Internal, "the model server returned invalid JSON for %s: %v", path, err)
	}
	return nil
}

// connectionError returns the error of a request whose connection failed.
func (s *server) connectionError(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if s.life.Err() != nil {
		return errClosed()
	}
	var inner interface{ Unwrap() error }
	if errors.As(err, &inner) && inner.Unwrap() != nil {
		err = inner.Unwrap() // users must not see the address of the server
	}
	return domain.Errorf(domain.Unavailable, "the connection to the model server failed (%v): retry the request", err)
}

// An apiError is the error object of a server: the value of OpenAI's field error, or the whole
// response.
type apiError struct {
	Message string `json:"message"`
	Param   string `json:"param"`
	Detail  any    `json:"detail"`
}

// responseError returns the error of a response with an error status. data is its body.
func responseError(status int, data []byte) *domain.Error {
	var wrapped struct {
		apiError
		Error json.RawMessage `json:"error"`
	}
	_ = json.Unmarshal(data, &wrapped) // if the body is not JSON, it becomes the message
	parsed := wrapped.apiError
	if len(wrapped.Error) > 0 && json.Unmarshal(wrapped.Error, &parsed) != nil {
		_ = json.Unmarshal(wrapped.Error, &parsed.Message) // some servers have a string instead of an object
	}
	message := parsed.Message
	if message == "" && parsed.Detail != nil {
		message = fmt.Sprint(parsed.Detail)
	}
	if message == "" {
		message = strings.TrimSpace(string(data))
	}
	message = short(message)
	if message == "" {
		message = "no reason was given"
	}
	if parsed.Param != "" {
		message = parsed.Param + ": " + message
	}
	switch {
	case status == http.StatusTooManyRequests:
		return domain.Errorf(domain.ResourceExhausted, "the model server is full: %s; try again later", message)
	case status == http.StatusServiceUnavailable:
		return domain.Errorf(domain.Unavailable, "the model server is not available: %s; try again later", message)
	case status == http.StatusNotImplemented:
		return domain.Errorf(domain.InvalidArgument, "the model server does not support the request: %s", message)
	case status >= 400 && status < 500:
		return domain.Errorf(domain.InvalidArgument, "the model server rejected the request: %s", message)
	}
	return domain.Errorf(domain.Internal, "the model server failed with status %d: %s", status, message)
}

// short returns a text as valid UTF-8 of at most maxMessage characters.
func short(text string) string {
	if runes := []rune(strings.ToValidUTF8(text, "\uFFFD")); len(runes) > maxMessage {
		return string(runes[:maxMessage]) + "…"
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

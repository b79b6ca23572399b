// Package trackertest has test servers with the interfaces of experiment trackers. They are strict:
// they refuse unknown fields, requests in the wrong order, and requests above the documented
// limits.
package trackertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// A Fault says how a test server fails at a request.
type Fault int

// Ways in which a test server fails at a request.
const (
	None   Fault = iota
	Refuse       // it responds with status 503 and does nothing
	Lose         // it executes the request, then closes the connection without a response
)

// A core has what all test servers share.
type core struct {
	mu sync.Mutex
	// key is the only API key that the server accepts.
	key    string
	down   func(r *http.Request) Fault
	errors []string
	seen   int
}

// SetKey replaces the API key that the server accepts.
func (c *core) SetKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
}

// FailWith makes the server call fault for each request and fail as the returned Fault says. A nil
// fault makes the server work again.
func (c *core) FailWith(fault func(r *http.Request) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = fault
}

// Violations returns a text for each request that broke the rules of the interface.
func (c *core) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.errors...)
}

// Requests returns the number of requests so far.
func (c *core) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// A violationError says how a request broke the rules of the interface.
type violationError struct {
	status  int
	code    string
	message string
}

func (v violationError) Error() string { return v.message }

func violation(format string, args ...any) error {
	return violationError{http.StatusBadRequest, "INVALID_PARAMETER_VALUE", fmt.Sprintf(format, args...)}
}

// serve handles a request, one at a time, and writes the response.
func (c *core) serve(w http.ResponseWriter, r *http.Request, handle func(*http.Request) (any, error)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen++
	fault := None
	if c.down != nil {
		fault = c.down(r)
	}
	if fault == Refuse {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	reply, err := handle(r)
	if fault == Lose {
		panic(http.ErrAbortHandler)
	}
	w.Header().Set("Content-Type", "application/json")
	var wrong violationError
	switch {
	case errors.As(err, &wrong):
		if wrong.code == "INVALID_PARAMETER_VALUE" {
			c.errors = append(c.errors, fmt.Sprintf("%s %s: %s", r.Method, r.URL, wrong.message))
		}
		w.WriteHeader(wrong.status)
		reply = map[string]any{"error_code": wrong.code, "message": wrong.message,
			"errors": []any{map[string]string{"message": wrong.message}}}
	case err != nil:
		w.WriteHeader(http.StatusInternalServerError)
		reply = map[string]string{"message": err.Error()}
	}
	_ = json.NewEncoder(w).Encode(reply) // Encode fails when the client has disconnected
}

// decode decodes the body of a request, which must be one JSON value without unknown fields.
func decode(r *http.Request, into any) error {
	if r.Header.Get("Content-Type") != "application/json" {
		return violation("Content-Type must be application/json, not %q", r.Header.Get("Content-Type"))
	}
	const maxBody = 1 << 20 // maximum bytes of a request, as in MLflow
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return err
	}
	if len(data) > maxBody {
		return violation("the body of the request has more than %d bytes", maxBody)
	}
	return strict(data, into)
}

func strict(data []byte, into any) error {
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(into); err != nil {
		return violation("%v", err)
	}
	if decoder.More() {
		return violation("the body must be one JSON value")
	}
	return nil
}

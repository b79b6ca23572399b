// Package trackertest has small servers for tests that implement the protocols of experiment
// trackers strictly: they refuse unknown fields, requests out of order and requests above the
// documented limits.
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

// A Fault is the way in which a server fails at a request.
type Fault int

// Failures of a server.
const (
	None   Fault = iota
	Refuse       // status 503 before the request has an effect
	Lose         // the connection closes after the request has taken effect
)

// A core has the fields and methods that the servers share.
type core struct {
	mu sync.Mutex
	// key is the API key that the server accepts.
	key    string
	down   func(r *http.Request) Fault
	errors []string
	seen   int
}

// SetKey replaces the key that the server accepts.
func (c *core) SetKey(key string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.key = key
}

// FailWith makes the server fail at the requests for which fault returns a Fault other than None. A
// nil fault ends the failures.
func (c *core) FailWith(fault func(r *http.Request) Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.down = fault
}

// Violations returns the requests that broke the protocol.
func (c *core) Violations() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.errors...)
}

// Requests returns the number of requests.
func (c *core) Requests() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen
}

// violationError is an error of a client that broke the protocol.
type violationError struct {
	status  int
	code    string
	message string
}

func (v violationError) Error() string { return v.message }

func violation(format string, args ...any) error {
	return violationError{http.StatusBadRequest, "INVALID_PARAMETER_VALUE", fmt.Sprintf(format, args...)}
}

// serve handles the requests one at a time.
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
	_ = json.NewEncoder(w).Encode(reply) // the client may be gone
}

// decode reads the body of a request, which must be one JSON value with known fields.
func decode(r *http.Request, into any) error {
	if r.Header.Get("Content-Type") != "application/json" {
		return violation("Content-Type is %q", r.Header.Get("Content-Type"))
	}
	const maxBody = 1 << 20 // MLflow's limit
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	if err != nil {
		return err
	}
	if len(data) > maxBody {
		return violation("the body has more than %d bytes", maxBody)
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
		return violation("more than one value")
	}
	return nil
}

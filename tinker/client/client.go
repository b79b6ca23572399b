// Package client is a client of the training service. A program that uses it implements the
// training loop: it trains a LoRA adapter on a trainer job in service mode, and samples from its
// weights.
//
// A Client opens sessions; a Session creates models and samplers. Operations of a model are
// executed in the order of the calls. A call returns when the server has stored the operation
// durably; its Future then waits for the result, so a loop can submit a pass and a step together
// and wait for both.
package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"anneal/tinker"
)

// Version is the version of the public Python client whose protocol this client speaks. It is sent
// to servers as sdk_version.
const Version = "0.25.0"

// Options configure a Client.
type Options struct {
	// URL is the direct route of a trainer job in service mode, such as "https://HANDLE.example.com".
	URL    string
	APIKey string
	// HTTPClient sends the requests; nil stands for http.DefaultClient. Each request has a timeout.
	HTTPClient *http.Client
	// RetryFor is how long a request is retried when the server cannot be reached or asks to try
	// again; 0 stands for five minutes. Polls of a Future are retried until the context of Wait is
	// done.
	RetryFor time.Duration
	Logger   *slog.Logger // receives messages of the server and of retries; nil stands for slog.Default
}

// A Client sends requests to one trainer job. It is safe for concurrent use.
type Client struct {
	url      string
	key      string
	http     *http.Client
	retryFor time.Duration
	log      *slog.Logger
	zstd     *zstd.Encoder
}

// New returns a client. It sends no request.
func New(o Options) (*Client, error) {
	if !strings.HasPrefix(o.URL, "http://") && !strings.HasPrefix(o.URL, "https://") {
		return nil, fmt.Errorf("URL of the training service must begin with http:// or https://, is %q", o.URL)
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	c := &Client{url: strings.TrimRight(o.URL, "/"), key: o.APIKey, http: o.HTTPClient, retryFor: o.RetryFor,
		log: o.Logger, zstd: encoder}
	if c.http == nil {
		c.http = http.DefaultClient
	}
	if c.retryFor == 0 {
		c.retryFor = 5 * time.Minute
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c, nil
}

// An Error is the response to a request that the server refused.
type Error struct {
	StatusCode int    // HTTP status
	Code       string // canonical code, such as "INVALID_ARGUMENT"
	Reason     string // such as "INVALID_FIELDS"
	Message    string
}

func (e *Error) Error() string {
	return fmt.Sprintf("training service: %s (status %d)", e.Message, e.StatusCode)
}

// An OperationError is the error of an operation that the server accepted and that failed later.
type OperationError struct {
	RequestID string
	Category  tinker.Category // whether the user or the operator of the server can fix it
	Message   string
}

func (e *OperationError) Error() string { return "training service: " + e.Message }

// Backoff between attempts, and timeouts.
const (
	firstWait    = 100 * time.Millisecond
	longestWait  = 30 * time.Second
	requestLimit = 60 * time.Second // of one attempt of a request
	pollLimit    = 45 * time.Second // of one poll of a future
)

// A request is one request of the protocol.
type request struct {
	method, path string // path below tinker.BasePath
	header       http.Header
	body         []byte
	limit        time.Duration
}

// send sends a request once, and returns status, Content-Type and body of the response.
func (c *Client) send(ctx context.Context, r request) (status int, contentType string, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, r.limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, r.method, c.url+tinker.BasePath+r.path, bytes.NewReader(r.body))
	if err != nil {
		return 0, "", nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	req.Header.Set("X-API-Key", c.key)
	response, err := c.http.Do(req)
	if err != nil {
		return 0, "", nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, response.Header.Get("Content-Type"), body, err
}

// errorOf returns the error of a response.
func errorOf(status int, body []byte) *Error {
	e := &Error{StatusCode: status}
	var form tinker.Error
	if json.Unmarshal(body, &form) == nil && form.Detail != "" {
		e.Code, e.Reason, e.Message = form.Code, form.Reason, form.Detail
	} else {
		e.Message = cmpOr(strings.TrimSpace(string(body[:min(len(body), 1000)])), http.StatusText(status))
	}
	return e
}

func cmpOr(text, other string) string {
	if text == "" {
		return other
	}
	return text
}

// isRetryable reports whether a request with this outcome is retried.
func isRetryable(status int, err error) bool {
	if err != nil {
		return true
	}
	return status == http.StatusRequestTimeout || status == http.StatusConflict ||
		status == http.StatusTooManyRequests || status >= 500
}

// call sends a JSON request, retries it like do, and decodes the response into out.
func (c *Client) call(ctx context.Context, method, path string, in, out any) error {
	r := request{method: method, path: path, header: http.Header{}, limit: requestLimit}
	if in != nil {
		body, err := json.Marshal(in)
		if err != nil {
			return err
		}
		r.body = body
		r.header.Set("Content-Type", tinker.ContentTypeJSON)
	}
	return c.do(ctx, r, out)
}

// do sends a request, and retries it with exponential backoff for at most RetryFor.
func (c *Client) do(ctx context.Context, r request, out any) error {
	deadline := time.Now().Add(c.retryFor)
	for wait := firstWait; ; wait = min(2*wait, longestWait) {
		status, _, body, err := c.send(ctx, r)
		again := isRetryable(status, err)
		switch {
		case err == nil && status < 300 && out == nil:
			return nil
		case err == nil && status < 300:
			return json.Unmarshal(body, out)
		case err == nil:
			err = errorOf(status, body)
		}
		switch {
		case !again:
			return err
		case time.Now().Add(wait).After(deadline):
			return fmt.Errorf("gave up after %s: %w", c.retryFor, err)
		}
		level := slog.LevelDebug
		if status == 0 { // the server cannot be reached
			level = slog.LevelWarn
		}
		c.log.Log(ctx, level, "training service: retrying a request", "path", r.path, "error", err, "wait", wait)
		if !sleep(ctx, wait) {
			return fmt.Errorf("%w; last attempt: %v", context.Cause(ctx), err)
		}
	}
}

// isRefused reports whether err says that the server refused the request, so that it has no effect.
func isRefused(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && !isRetryable(refused.StatusCode, nil)
}

// sleep waits, and returns false if ctx was done before.
func sleep(ctx context.Context, wait time.Duration) bool {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return ctx.Err() == nil
	}
}

// Capabilities returns the base models that the job can train.
func (c *Client) Capabilities(ctx context.Context) (tinker.ServerCapabilities, error) {
	var out tinker.ServerCapabilities
	return out, c.call(ctx, http.MethodGet, "get_server_capabilities", nil, &out)
}

// TrainingRuns returns a page of the training runs of the job, newest first.
func (c *Client) TrainingRuns(ctx context.Context, limit, offset int) (tinker.TrainingRuns, error) {
	var out tinker.TrainingRuns
	return out, c.call(ctx, http.MethodGet, fmt.Sprintf("training_runs?limit=%d&offset=%d", limit, offset), nil, &out)
}

// TrainingRun returns the training run with an ID: see Model.ID.
func (c *Client) TrainingRun(ctx context.Context, id string) (tinker.TrainingRun, error) {
	var out tinker.TrainingRun
	return out, c.call(ctx, http.MethodGet, "training_runs/"+id, nil, &out)
}

// Checkpoints returns the checkpoints of a training run.
func (c *Client) Checkpoints(ctx context.Context, run string) (tinker.Checkpoints, error) {
	var out tinker.Checkpoints
	return out, c.call(ctx, http.MethodGet, "training_runs/"+run+"/checkpoints", nil, &out)
}

// DeleteCheckpoint deletes the checkpoint with a tinker:// path.
func (c *Client) DeleteCheckpoint(ctx context.Context, path string) error {
	return c.checkpoint(ctx, http.MethodDelete, path, "", nil)
}

// SetTTL changes when a checkpoint expires: after ttl from now, or never if ttl is 0.
func (c *Client) SetTTL(ctx context.Context, path string, ttl time.Duration) error {
	request := tinker.TTLRequest{}
	if ttl > 0 {
		request.TTLSeconds = new(int64(ttl / time.Second))
	}
	return c.checkpoint(ctx, http.MethodPut, path, "/ttl", request)
}

func (c *Client) checkpoint(ctx context.Context, method, path, suffix string, in any) error {
	p, err := tinker.ParsePath(path)
	if err != nil {
		return fmt.Errorf("path of a checkpoint %w", err)
	}
	return c.call(ctx, method, "training_runs/"+p.Run+"/checkpoints/"+p.CheckpointID()+suffix, in, nil)
}

// WeightsInfo returns the base model and the adapter settings of the checkpoint with a tinker://
// path.
func (c *Client) WeightsInfo(ctx context.Context, path string) (tinker.WeightsInfo, error) {
	var out tinker.WeightsInfo
	return out, c.call(ctx, http.MethodPost, "weights_info", tinker.WeightsInfoRequest{TinkerPath: path}, &out)
}

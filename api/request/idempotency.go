package request

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"mime"
	"mime/multipart"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	sealed "anneal/eventlog/secrets"
)

// Answers stores the responses to requests with an idempotency key, for all servers.
// idempotency.Store implements it.
type Answers interface {
	// Claim reserves a key for the duration lease, for the request with the given digest. The returned
	// claim states whether the key was free: see idempotency.Claim.
	Claim(ctx context.Context, key string, digest []byte, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Renew extends the lease of a claim.
	Renew(ctx context.Context, claim idempotency.Claim, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Store stores the response to the request that holds the claim.
	Store(ctx context.Context, claim idempotency.Claim, answer []byte) error
	// Release releases the key without a response.
	Release(ctx context.Context, claim idempotency.Claim) error
}

// Headers of repeated requests and their responses.
const (
	IdempotencyHeader = "Idempotency-Key"
	ReplayedHeader    = "Idempotent-Replayed"
)

// MaxIdempotencyKey bounds an idempotency key, in characters.
const MaxIdempotencyKey = 255

// maxStoredError bounds a stored error response, in bytes, because rejected requests cost a client
// nothing and must not fill the disk.
const maxStoredError = 4 << 10

// ClaimTime is the lease of a claim. After a server has died, its claims expire within ClaimTime; a
// running server renews its claims. If another server takes over the key of a running server,
// because of clock skew or an unreachable store, the command ID prevents a change from being
// recorded twice.
const ClaimTime = 6 * time.Second

// idempotent handles a call with an idempotency key, so that retries do not repeat its effects.
type idempotent struct{ *Call }

// once runs h and returns its result, unless a response is stored under the request's idempotency
// key: then once returns the stored response. A key belongs to the principal's account and to the
// first request that used it, for a day.
//
// A response is stored when it is a success or a decided error of at most maxStoredError bytes. A
// longer error is computed again for each retry. After any other response, a client may send the
// same request again, and the retry continues where the first attempt ended: generated IDs are
// derived from the claim's seed, so that the retry finds the events that the first attempt has
// recorded.
func (c idempotent) once(h Handler) (any, error) {
	given, ok := c.Request.Header[IdempotencyHeader]
	if !ok || !c.Operation.Repeatable() {
		return h(c.Call)
	}
	key, err := idempotencyKey(given)
	if err == nil && !c.Operation.ReleasesResources {
		err = c.hasSpace() // to store the response
	}
	if err != nil {
		return nil, err
	}
	request, err := c.content()
	if err != nil {
		return nil, err
	}
	slot := c.slot(key, request)
	claim, err := c.claim(slot)
	if err != nil {
		return nil, err
	}
	if claim.State == idempotency.Completed {
		return slot.open(claim.Response)
	}
	c.seed, c.repeated = claim.Seed, claim.State == idempotency.Resumed
	c.view = nil // the wait for the claim may have been long
	held := c.hold(claim)
	defer held.release() // no effect after stop
	result, err := h(c.Call)
	return c.keep(slot, held, result, err)
}

// Repeatable reports whether the operation accepts an idempotency key. Such an operation changes
// resources or generates usage, and its gate authorizes the principal.
func (op *Operation) Repeatable() bool {
	return (op.Method == http.MethodPost || op.Method == http.MethodPatch) &&
		(op.Gate == InAccount || op.Gate == InOwnAccount || op.Gate == ByOperator || op.Gate == ToModels)
}

// IdempotencyParameter describes the header Idempotency-Key in the OpenAPI document.
var IdempotencyParameter = map[string]any{"name": IdempotencyHeader, "in": "header",
	"description": "A key that makes retries of the request safe, such as a random UUID: requests with the same key " +
		"are executed once, " +
		"and get the same response for 24 hours.",
	"schema":  wire.Schema{"type": "string", "minLength": 1, "maxLength": MaxIdempotencyKey},
	"example": "6f1c9f0e-4b1d-4f0a-9a53-0c2d7be81a44"}

func idempotencyKey(given []string) (string, error) {
	var v domain.Violations
	v.Require(len(given) == 1, IdempotencyHeader, "is given %d times: give it once", len(given))
	n := utf8.RuneCountInString(given[0])
	v.Require(n >= 1 && n <= MaxIdempotencyKey && utf8.ValidString(given[0]), IdempotencyHeader,
		"must have 1 to %d characters, not %d: send a random UUID, or leave the header out", MaxIdempotencyKey, n)
	return given[0], v.Err()
}

// A slot identifies the entry of one request under one idempotency key in the store.
type slot struct {
	name   string // key of the entry in the store
	digest []byte // digest of the request
	key    []byte // encryption key of the response, derived from the request
}

// slot returns the slot of an idempotency key and a request. The encryption key is derived from the
// request too, so that a stored response, such as one with a secret's value, cannot be read without
// the request.
func (c idempotent) slot(key string, request []byte) slot {
	mac := func(use string, parts ...[]byte) []byte {
		return deriveKey(c.Pepper, "idempotency "+use, parts...)
	}
	account, header := []byte(c.Principal.Account), []byte(key)
	return slot{
		name:   fmt.Sprintf("%s.%x", account, mac("slot", account, header)),
		digest: mac("digest", request),
		key:    mac("seal", account, header, request),
	}
}

// content returns the parts of the request on which the response depends: method, direct route, path,
// query and body. The handler can still read the body. For a form, content returns only the values of
// the fields, because the boundary of the form differs between attempts.
func (c idempotent) content() ([]byte, error) {
	body, err := c.buffer()
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "%s\n%s%s\n%s\n", c.Request.Method, c.Direct, c.Request.URL.EscapedPath(),
		c.Request.URL.RawQuery)
	kind, parameters, err := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || c.Operation.Form == nil { // then the handler parses JSON
		if c.Operation.IsInference() && requestsStream(body) {
			var v domain.Violations
			v.Add(IdempotencyHeader, "cannot be combined with stream: a streamed response is not stored; leave out one of "+
				"the two")
			return nil, v.Err()
		}
		return append(request, body...), nil
	}
	form := multipart.NewReader(bytes.NewReader(body), parameters["boundary"])
	for {
		part, err := form.NextRawPart()
		if errors.Is(err, io.EOF) {
			return request, nil
		}
		if err != nil { // the handler rejects the form
			return append(request, body...), nil
		}
		content, err := io.ReadAll(part)
		if err != nil {
			return append(request, body...), nil
		}
		request = fmt.Appendf(request, "%q %q %d\n", part.FormName(), part.FileName(), len(content))
		request = append(request, content...)
	}
}

func requestsStream(body []byte) bool {
	var fields map[string]json.RawMessage // a struct field would also accept the key Stream
	return json.Unmarshal(body, &fields) == nil && string(fields["stream"]) == "true"
}

// buffer returns the body of the request, which the handler can still read. It returns an error
// when the body exceeds Limits.Body, because larger uploads require a request without an
// idempotency key.
func (c idempotent) buffer() ([]byte, error) {
	body, err := c.Conn.ReadBody(c.Request, c.Limits.Body)
	var f *domain.Error
	switch {
	case errors.As(err, &f) && f.Reason == ReasonBodyTooLarge:
		f.Message = fmt.Sprintf("with an %s the body may have at most %d bytes: send a smaller body, or leave the header "+
			"out, because an upload can be repeated without the header", IdempotencyHeader, c.Limits.Body)
		return nil, f
	case err != nil:
		return nil, err
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// claim claims the slot. While another attempt of the same request is in progress, it waits up to
// Limits.RepeatWait.
func (c idempotent) claim(s slot) (idempotency.Claim, error) {
	begun, pause := time.Now(), 10*time.Millisecond
	for {
		now := c.Time.Add(time.Since(begun))
		claim, err := c.Answers.Claim(c.Ctx, s.name, s.digest, now, ClaimTime)
		var fault *domain.Error
		switch {
		case err != nil && !errors.As(err, &fault) && c.Ctx.Err() == nil:
			c.Logger.Error("an idempotency key could not be claimed", "request", c.ID, "error", err)
			return claim, &domain.Error{Code: domain.Unavailable, Reason: "LOG_UNAVAILABLE",
				Message: "the store of idempotency keys did not respond, and the request was not executed: try again"}
		case err != nil:
			if fault != nil && fault.Reason == idempotency.ReasonFull {
				c.Writer.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(claim.Lease.Sub(now).Seconds())))))
			}
			return claim, err
		case claim.State == idempotency.Mismatch:
			return claim, &domain.Error{Code: domain.AlreadyExists, Reason: "IDEMPOTENCY_KEY_REUSED",
				Message: "this " + IdempotencyHeader +
					" was used for another request within the last 24 hours: repeat that request exactly, or choose another key"}
		case claim.State != idempotency.InProgress:
			return claim, nil
		case time.Since(begun) > c.Limits.RepeatWait:
			left := max(1, int(claim.Lease.Sub(now).Seconds()))
			c.Writer.Header().Set("Retry-After", strconv.Itoa(min(left, 5)))
			return claim, &domain.Error{Code: domain.Aborted, Reason: "IDEMPOTENCY_KEY_BUSY",
				Message: "the same request is in progress: try again shortly to get its response"}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		case <-c.Ctx.Done():
			return claim, c.Ctx.Err()
		}
	}
}

// keep stores the response of a handler that returned result and err, and returns the response.
// When the handler has written the response itself, or decided reports false for err, it stores
// nothing and returns result and err. It only logs an error of the store.
func (c idempotent) keep(s slot, held *held, result any, err error) (any, error) {
	if err == nil && result == nil || err != nil && !decided(ErrorOf(err)) {
		return result, err
	}
	answer, refused := c.answered(result, err), err != nil
	sealed, err := s.seal(answer)
	if err != nil {
		return nil, err
	}
	if refused && len(sealed) > maxStoredError {
		return answer, nil
	}
	if len(sealed) > idempotency.MaxResponse {
		tooLong := domain.Errorf(domain.Aborted,
			"the first request with this %s has a response that is too large to store: read the resources that it "+
				"changed, or send the request again with another key", IdempotencyHeader)
		tooLong.Reason = "ANSWER_NOT_KEPT"
		if sealed, err = s.seal(c.answered(nil, tooLong)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := c.Detached()
	defer cancel()
	if err := c.Answers.Store(ctx, held.stop(), sealed); err != nil {
		c.Logger.Warn("a response was not stored; a retry of the request returns the recorded "+
			"changes", "request", c.ID, "error",
			err)
	}
	return answer, nil
}

// A held is a claim whose lease is renewed until stop is called.
type held struct {
	*Call
	claim   idempotency.Claim // may be read after ended is closed
	end     chan struct{}
	ended   chan struct{}
	stopped bool
}

func (c idempotent) hold(claim idempotency.Claim) *held {
	h := &held{Call: c.Call, claim: claim, end: make(chan struct{}), ended: make(chan struct{})}
	go h.renew(time.Now())
	return h
}

func (h *held) renew(begun time.Time) {
	defer close(h.ended)
	again := time.NewTicker(ClaimTime / 3)
	defer again.Stop()
	for {
		select {
		case <-h.end:
			return
		case <-again.C:
		}
		ctx, cancel := h.Detached()
		renewed, err := h.Answers.Renew(ctx, h.claim, h.Time.Add(time.Since(begun)), ClaimTime)
		cancel()
		switch {
		case err == nil:
			h.claim = renewed
		case errors.Is(err, eventlog.ErrConflict): // another server has claimed the key
			return
		}
	}
}

// stop ends the renewal of the claim and returns the claim.
func (h *held) stop() idempotency.Claim {
	h.stopped = true
	close(h.end)
	<-h.ended
	return h.claim
}

// release releases the key, unless stop was called before.
func (h *held) release() {
	if h.stopped {
		return
	}
	claim := h.stop()
	ctx, cancel := h.Detached()
	defer cancel()
	if err := h.Answers.Release(ctx, claim); err != nil {
		h.Logger.Warn("an idempotency key was not released: a client can use it again when its lease "+
			"ends", "request", h.ID, "error", err)
	}
}

// decided reports whether an error depends only on the request, and not on the time or the
// principal, so that each retry would get the same error.
func decided(f *domain.Error) bool {
	status := HTTPStatus(f)
	undecided := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, statusClientClosed}
	return status < http.StatusInternalServerError && !slices.Contains(undecided, status) && f.Code != domain.Aborted
}

// A StoredResponse is a response in the form in which the idempotency store keeps it.
type StoredResponse struct {
	Status   int         `json:"status"`
	Header   http.Header `json:"header"` // headers that the handler has set
	Body     []byte      `json:"body"`
	replayed bool
}

// answered returns the response to the call as a StoredResponse. It sends nothing to the client.
func (c idempotent) answered(result any, err error) StoredResponse {
	to := &capture{header: http.Header{}}
	if err != nil {
		WriteError(to, ErrorOf(err), c.ID, c.Operation.HasInferenceErrors())
	} else {
		WriteResponse(to, result)
	}
	for name, values := range c.Writer.Header() {
		if strings.HasPrefix(name, "Anneal-") && name != http.CanonicalHeaderKey(StaleHeader) {
			to.header[name] = values
		}
	}
	return StoredResponse{Status: to.status, Header: to.header, Body: to.body.Bytes()}
}

// Send sends the response.
func (a StoredResponse) Send(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	if a.replayed {
		w.Header().Set(ReplayedHeader, "true")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // a client that has disconnected can repeat the request
}

func (s slot) seal(a StoredResponse) ([]byte, error) {
	plain, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return sealed.Encrypt(s.key, plain, []byte(s.name))
}

func (s slot) open(ciphertext []byte) (any, error) {
	plain, err := sealed.Decrypt(s.key, ciphertext, []byte(s.name))
	if err != nil {
		return nil, domain.Errorf(domain.DataLoss,
			"the response that is stored under this %s cannot be decrypted: the server's keys were changed since; use "+
				"another idempotency key",
			IdempotencyHeader)
	}
	answer := StoredResponse{replayed: true}
	return answer, json.Unmarshal(plain, &answer)
}

// A capture is a ResponseWriter in memory.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (c *capture) Header() http.Header            { return c.header }
func (c *capture) WriteHeader(status int)         { c.status = status }
func (c *capture) Write(data []byte) (int, error) { return c.body.Write(data) }

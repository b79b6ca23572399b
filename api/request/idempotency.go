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

// IdempotencyStore stores responses by idempotency key for all servers of the installation.
// idempotency.Store implements it.
type IdempotencyStore interface {
	// Claim reserves a key, for the duration lease, for the request with the given digest. The
	// State of the returned claim states whether the key was free, in use or already has a
	// response: see idempotency.Claim.
	Claim(ctx context.Context, key string, digest []byte, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Renew extends the lease of a claim, and returns the renewed claim.
	Renew(ctx context.Context, claim idempotency.Claim, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Store stores the encoded response to the request that holds the claim.
	Store(ctx context.Context, claim idempotency.Claim, response []byte) error
	// Release frees the key of a claim without storing a response.
	Release(ctx context.Context, claim idempotency.Claim) error
}

// IdempotencyHeader is the request header with the idempotency key. ReplayedHeader is the response
// header with the value "true" in a response that was stored by an earlier attempt.
const (
	IdempotencyHeader = "Idempotency-Key"
	ReplayedHeader    = "Idempotent-Replayed"
)

// MaxIdempotencyKey is the maximum length of an idempotency key, in characters.
const MaxIdempotencyKey = 255

// maxStoredError is the maximum size of a stored error response, in bytes. Rejected requests cost a
// client nothing, so they must not fill the disk.
const maxStoredError = 4 << 10

// ClaimTime is the lease of a claim on an idempotency key. A running server renews its claims;
// after a crash, the claims expire within ClaimTime. Another server can take over a running
// server's claim because of clock skew or an unreachable store; then the command ID prevents that a
// change is recorded twice.
const ClaimTime = 6 * time.Second

// idempotent executes a call so that retries with the same idempotency key do not repeat its
// effects.
type idempotent struct{ *Call }

// once runs h and returns its result. If a response is stored under the request's idempotency key,
// once returns that response instead. An idempotency key belongs to an account and to the first
// request that used it, for a day.
//
// once stores successes, and final errors of at most maxStoredError bytes; a longer final error is
// computed again by each retry. After any other response, a client may retry the request, and the
// retry continues where the first attempt ended: the IDs that the handler generates are derived
// from the claim's seed, so that the retry finds the events that the first attempt recorded.
func (c idempotent) once(h Handler) (any, error) {
	given, ok := c.Request.Header[IdempotencyHeader]
	if !ok || !c.Operation.Repeatable() {
		return h(c.Call)
	}
	key, err := idempotencyKey(given)
	if err == nil && !c.Operation.ReleasesResources {
		err = c.hasSpace() // the response will be stored on the disk
	}
	if err != nil {
		return nil, err
	}
	request, err := c.content()
	if err != nil {
		return nil, err
	}
	entry := c.entryKey(key, request)
	claim, err := c.claim(entry)
	if err != nil {
		return nil, err
	}
	if claim.State == idempotency.Completed {
		return entry.open(claim.Response)
	}
	c.seed, c.repeated = claim.Seed, claim.State == idempotency.Resumed
	c.view = nil // the world may have changed while the call waited for the claim
	leased := c.renewLease(claim)
	defer leased.release() // does nothing if stop was called before
	result, err := h(c.Call)
	return c.store(entry, leased, result, err)
}

// Repeatable reports whether the operation accepts an idempotency key: it must change resources or
// generate usage, and must have an authenticated principal.
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

// An entryKey identifies the entry of a request in the idempotency store.
type entryKey struct {
	name   string // name of the entry in the store, derived from the account and the idempotency key
	digest []byte // digest of the request, which a retry must have too
	key    []byte // encryption key of the stored response, derived from the request
}

// entryKey returns the entryKey of a request with the idempotency key. The encryption key is also
// derived from the request, so that a stored response, which may contain a secret, can be read only
// with the request.
func (c idempotent) entryKey(key string, request []byte) entryKey {
	mac := func(use string, parts ...[]byte) []byte {
		return deriveKey(c.Pepper, "idempotency "+use, parts...)
	}
	account, header := []byte(c.Principal.Account), []byte(key)
	return entryKey{
		name:   fmt.Sprintf("%s.%x", account, mac("slot", account, header)),
		digest: mac("digest", request),
		key:    mac("seal", account, header, request),
	}
}

// content returns the parts of the request on which the response depends: method, direct route,
// path, query and body. The handler can still read the body. For a form, content has only the
// values of the fields, because the boundary between them differs in each attempt.
func (c idempotent) content() ([]byte, error) {
	body, err := c.buffer()
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "%s\n%s%s\n%s\n", c.Request.Method, c.Direct, c.Request.URL.EscapedPath(),
		c.Request.URL.RawQuery)
	kind, parameters, err := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	// not a form, so the handler parses JSON
	if err != nil || kind != "multipart/form-data" || c.Operation.Form == nil {
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
		if err != nil { // the form is malformed, and the handler rejects it
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
	var fields map[string]json.RawMessage // decoding into a struct would also accept the key "Stream"
	return json.Unmarshal(body, &fields) == nil && string(fields["stream"]) == "true"
}

// buffer returns the body of the request, which the handler can still read. It returns an error for
// a body of more than Limits.Body bytes: larger uploads must be sent without an idempotency key.
func (c idempotent) buffer() ([]byte, error) {
	body, err := c.Conn.ReadBody(c.Request, c.Limits.Body)
	var f *domain.Error
	switch {
	case errors.As(err, &f) && f.Reason == ReasonBodyTooLarge:
		f.Message = fmt.Sprintf("a request with an %s may have a body of at most %d bytes: send a smaller body, or leave "+
			"the header "+
			"out; uploads can be retried without it", IdempotencyHeader, c.Limits.Body)
		return nil, f
	case err != nil:
		return nil, err
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// claim claims the entry in the store. While another attempt of the same request is in progress,
// claim waits, for at most Limits.RepeatWait.
func (c idempotent) claim(s entryKey) (idempotency.Claim, error) {
	begun, pause := time.Now(), 10*time.Millisecond
	for {
		now := c.Time.Add(time.Since(begun))
		claim, err := c.Idempotency.Claim(c.Ctx, s.name, s.digest, now, ClaimTime)
		var fault *domain.Error
		switch {
		case err != nil && !errors.As(err, &fault) && c.Ctx.Err() == nil:
			c.Logger.Error("an idempotency key could not be claimed; the request was refused", "request", c.ID, "error", err)
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
				Message: "an earlier attempt of this request is still in progress: try again shortly to get its response"}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		case <-c.Ctx.Done():
			return claim, c.Ctx.Err()
		}
	}
}

// store stores the response of a handler that returned result and err, and returns the response. It
// stores nothing and returns result and err if the handler has written the response itself, or if
// err is not final. If the store fails, it only logs the error.
func (c idempotent) store(s entryKey, leased *leasedClaim, result any, err error) (any, error) {
	if err == nil && result == nil || err != nil && !isFinal(ErrorOf(err)) {
		return result, err
	}
	answer, refused := c.response(result, err), err != nil
	sealed, err := s.seal(answer)
	if err != nil {
		return nil, err
	}
	if refused && len(sealed) > maxStoredError {
		return answer, nil
	}
	if len(sealed) > idempotency.MaxResponse {
		tooLong := domain.Errorf(domain.Aborted,
			"the request was executed, but its response is too large to be stored for this %s: read the resources "+
				"that it changed; sent with another key, it is executed again", IdempotencyHeader)
		tooLong.Reason = "ANSWER_NOT_KEPT"
		if sealed, err = s.seal(c.response(nil, tooLong)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := c.Detached()
	defer cancel()
	claim := leased.stop()
	claim.Position = max(c.reflected, c.World.Position())
	if err := c.Idempotency.Store(ctx, claim, sealed); err != nil {
		c.Logger.Warn("the response for an idempotency key was not stored; a retry of the request returns the recorded "+
			"changes", "request", c.ID, "error",
			err)
	}
	return answer, nil
}

// A leasedClaim is a claim whose lease a goroutine renews until stop is called.
type leasedClaim struct {
	*Call
	claim   idempotency.Claim // may be read only after ended is closed
	end     chan struct{}
	ended   chan struct{}
	stopped bool
}

func (c idempotent) renewLease(claim idempotency.Claim) *leasedClaim {
	h := &leasedClaim{Call: c.Call, claim: claim, end: make(chan struct{}), ended: make(chan struct{})}
	go h.renew(time.Now())
	return h
}

func (h *leasedClaim) renew(begun time.Time) {
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
		renewed, err := h.Idempotency.Renew(ctx, h.claim, h.Time.Add(time.Since(begun)), ClaimTime)
		cancel()
		switch {
		case err == nil:
			h.claim = renewed
		case errors.Is(err, eventlog.ErrConflict): // another server has taken over the key
			return
		}
	}
}

// stop ends the renewal of the lease and returns the claim.
func (h *leasedClaim) stop() idempotency.Claim {
	h.stopped = true
	close(h.end)
	<-h.ended
	return h.claim
}

// release frees the key of the claim, unless stop was called before.
func (h *leasedClaim) release() {
	if h.stopped {
		return
	}
	claim := h.stop()
	ctx, cancel := h.Detached()
	defer cancel()
	if err := h.Idempotency.Release(ctx, claim); err != nil {
		h.Logger.Warn("an idempotency key was not released; a retry has to wait until the lease of the key "+
			"expires", "request", h.ID, "error", err)
	}
}

// isFinal reports whether each retry of the request would get the same error: the error does not
// depend on the time, the principal or concurrent changes.
func isFinal(f *domain.Error) bool {
	status := HTTPStatus(f)
	notFinal := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, statusClientClosed}
	return status < http.StatusInternalServerError && !slices.Contains(notFinal, status) && f.Code != domain.Aborted
}

// A StoredResponse is a response as the idempotency store stores it.
type StoredResponse struct {
	Status   int         `json:"status"`
	Header   http.Header `json:"header"` // headers that the handler has set, such as anneal-position
	Body     []byte      `json:"body"`
	replayed bool
}

// response returns the call's response as a StoredResponse. It sends nothing to the client.
func (c idempotent) response(result any, err error) StoredResponse {
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

// Send writes the stored response to the client.
func (a StoredResponse) Send(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	if a.replayed {
		w.Header().Set(ReplayedHeader, "true")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // after a failed write the client can retry
}

func (s entryKey) seal(a StoredResponse) ([]byte, error) {
	plain, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return sealed.Encrypt(s.key, plain, []byte(s.name))
}

func (s entryKey) open(ciphertext []byte) (any, error) {
	plain, err := sealed.Decrypt(s.key, ciphertext, []byte(s.name))
	if err != nil {
		return nil, domain.Errorf(domain.DataLoss,
			"the response that is stored for this %s cannot be decrypted, because the server's keys have changed: use "+
				"another idempotency key",
			IdempotencyHeader)
	}
	answer := StoredResponse{replayed: true}
	return answer, json.Unmarshal(plain, &answer)
}

// A capture is an http.ResponseWriter that stores the response in memory.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (c *capture) Header() http.Header            { return c.header }
func (c *capture) WriteHeader(status int)         { c.status = status }
func (c *capture) Write(data []byte) (int, error) { return c.body.Write(data) }

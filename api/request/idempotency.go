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

// Answers store the responses to requests with an idempotency key, for all servers. See
// idempotency.Store.
type Answers interface {
	// Claim takes a key for a request, unless another request has it.
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

// maxKeptRefusal bounds a stored error response, in bytes: refused requests are free and must not
// fill the disk.
const maxKeptRefusal = 4 << 10

// ClaimTime is how long a key stays claimed by a server that has died; a live one renews its claim.
// If another server takes over nevertheless, because of clock skew or an unreachable store, the
// command ID still prevents that a change is recorded twice.
const ClaimTime = 6 * time.Second

// idempotent carries out a call once for its idempotency key.
type idempotent struct{ *Call }

// once carries out h, unless it was carried out before under the request's idempotency key: then it
// returns the stored response. A key belongs to the principal's account and to the first request
// that used it, for a day.
//
// A response is stored when it is a success or a decided error of at most maxKeptRefusal bytes; a
// longer one is computed again. After any other response the same request may be sent again, and
// continues where the first one ended: generated IDs are derived from the claim's seed, so that it
// finds the events that are recorded already.
func (c idempotent) once(h Handler) (any, error) {
	given, ok := c.Request.Header[IdempotencyHeader]
	if !ok || !c.Operation.Repeatable() {
		return h(c.Call)
	}
	key, err := idempotencyKey(given)
	if err == nil && !c.Operation.ReleasesResources {
		err = c.hasRoom() // for the response
	}
	if err != nil {
		return nil, err
	}
	request, err := c.whole()
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
	c.view = nil // the claim may have taken long
	held := c.hold(claim)
	defer held.release() // unless it is settled
	result, err := h(c.Call)
	return c.keep(slot, held, result, err)
}

// Repeatable reports whether the operation accepts an idempotency key: it changes or costs
// something, and its gate authorizes it.
func (op *Operation) Repeatable() bool {
	return (op.Method == http.MethodPost || op.Method == http.MethodPatch) && (op.Gate == InAccount || op.Gate == ByOperator || op.Gate == ToModels)
}

// IdempotencyParameter describes the header.
var IdempotencyParameter = map[string]any{"name": IdempotencyHeader, "in": "header",
	"description": "What makes the request safe to repeat, such as a random UUID: with the same one it happens once, and is answered alike for 24 hours.",
	"schema":      wire.Schema{"type": "string", "minLength": 1, "maxLength": MaxIdempotencyKey}}

func idempotencyKey(given []string) (string, error) {
	var v domain.Violations
	v.Require(len(given) == 1, IdempotencyHeader, "is given %d times: give it once", len(given))
	n := utf8.RuneCountInString(given[0])
	v.Require(n >= 1 && n <= MaxIdempotencyKey && utf8.ValidString(given[0]), IdempotencyHeader,
		"must have 1 to %d characters, such as a random UUID, and not %d: or leave the header out", MaxIdempotencyKey, n)
	return given[0], v.Err()
}

// A slot is the entry of one request under one key in the store.
type slot struct {
	name   string // in the store
	digest []byte // of the request
	key    []byte // encrypts the response; derived from the request
}

// slot derives everything from the pepper. The key that encrypts the response is derived from the
// request as well: without the request a stored response, such as one with a secret's value, cannot
// be read.
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

// whole returns the parts of the request that its response depends on: method, direct route, path,
// query and body, which stays readable for the handler. A form is reduced to its fields, since its
// boundary differs between attempts.
func (c idempotent) whole() ([]byte, error) {
	body, err := c.buffer()
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "%s\n%s%s\n%s\n", c.Request.Method, c.Direct, c.Request.URL.EscapedPath(), c.Request.URL.RawQuery)
	kind, parameters, err := mime.ParseMediaType(c.Request.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || c.Operation.Form == nil { // read as JSON
		if c.Operation.IsInference() && asksForStream(body) {
			var v domain.Violations
			v.Add(IdempotencyHeader, "cannot go with stream: a streamed answer is not kept; leave out one of the two")
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
		if err != nil { // the handler refuses it
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

func asksForStream(body []byte) bool {
	var asked map[string]json.RawMessage // a struct would match Stream as well
	return json.Unmarshal(body, &asked) == nil && string(asked["stream"]) == "true"
}

// buffer reads the body and restores it for the handler. A body above MaxBody is refused: only
// uploads without a key may be that large.
func (c idempotent) buffer() ([]byte, error) {
	body, err := c.Conn.ReadBody(c.Request, c.MaxBody)
	var f *domain.Error
	switch {
	case errors.As(err, &f) && f.Reason == ReasonBodyTooLarge:
		f.Message = fmt.Sprintf("with an %s the body may have at most %d bytes: send less, or leave the header out (an upload may be repeated without it)", IdempotencyHeader, c.MaxBody)
		return nil, f
	case err != nil:
		return nil, err
	}
	c.Request.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// claim claims the slot, and waits up to RepeatWait while the same request is in progress.
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
				Message: "the store of idempotency keys did not answer, and nothing was done: try again"}
		case err != nil:
			if fault != nil && fault.Reason == idempotency.ReasonFull {
				c.Writer.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(claim.Lease.Sub(now).Seconds())))))
			}
			return claim, err
		case claim.State == idempotency.Mismatch:
			return claim, &domain.Error{Code: domain.AlreadyExists, Reason: "IDEMPOTENCY_KEY_REUSED",
				Message: "this " + IdempotencyHeader + " came with another request within the last 24 hours: repeat that one exactly, or choose another key"}
		case claim.State != idempotency.InProgress:
			return claim, nil
		case time.Since(begun) > c.RepeatWait:
			left := max(1, int(claim.Lease.Sub(now).Seconds()))
			c.Writer.Header().Set("Retry-After", strconv.Itoa(min(left, 5)))
			return claim, &domain.Error{Code: domain.Aborted, Reason: "IDEMPOTENCY_KEY_BUSY",
				Message: "the same request is under way: try again shortly to get its answer"}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		case <-c.Ctx.Done():
			return claim, c.Ctx.Err()
		}
	}
}

// keep stores the response, unless it depends on more than the request.
func (c idempotent) keep(s slot, held *held, result any, err error) (any, error) {
	if err == nil && result == nil || err != nil && !decided(ErrorOf(err)) {
		return result, err
	}
	answer, refused := c.answered(result, err), err != nil
	sealed, err := s.seal(answer)
	if err != nil {
		return nil, err
	}
	if refused && len(sealed) > maxKeptRefusal {
		return answer, nil
	}
	if len(sealed) > idempotency.MaxResponse {
		tooLong := domain.Errorf(domain.Aborted, "the first request with this %s was answered, but with more than is kept of an answer: look at what it changed, or ask again with another key", IdempotencyHeader)
		tooLong.Reason = "ANSWER_NOT_KEPT"
		if sealed, err = s.seal(c.answered(nil, tooLong)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := c.Detached()
	defer cancel()
	if err := c.Answers.Store(ctx, held.settle(), sealed); err != nil {
		c.Logger.Warn("an answer was not kept; who repeats the request finds what it recorded", "request", c.ID, "error", err)
	}
	return answer, nil
}

// A held claim is renewed until it is settled.
type held struct {
	*Call
	claim   idempotency.Claim // once renewing has ended
	end     chan struct{}
	ended   chan struct{}
	settled bool
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
		case errors.Is(err, eventlog.ErrConflict): // another server took over
			return
		}
	}
}

// settle stops renewing and returns the claim.
func (h *held) settle() idempotency.Claim {
	h.settled = true
	close(h.end)
	<-h.ended
	return h.claim
}

// release releases the key, unless the claim is settled.
func (h *held) release() {
	if h.settled {
		return
	}
	claim := h.settle()
	ctx, cancel := h.Detached()
	defer cancel()
	if err := h.Answers.Release(ctx, claim); err != nil {
		h.Logger.Warn("an idempotency key was not given back: it is free when its lease ends", "request", h.ID, "error", err)
	}
}

// decided reports whether an error depends on the request alone, and not on its time or principal.
func decided(f *domain.Error) bool {
	status := HTTPStatus(f)
	undecided := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, statusClientClosed}
	return status < http.StatusInternalServerError && !slices.Contains(undecided, status) && f.Code != domain.Aborted
}

// A StoredResponse is a response as it was, or will be, sent.
type StoredResponse struct {
	Status   int         `json:"status"`
	Header   http.Header `json:"header"` // what the handler set
	Body     []byte      `json:"body"`
	replayed bool
}

// answered returns the response instead of sending it.
func (c idempotent) answered(result any, err error) StoredResponse {
	to := &capture{header: http.Header{}}
	if err != nil {
		WriteError(to, ErrorOf(err), c.ID, c.Operation.IsInference())
	} else {
		WriteResponse(to, result)
	}
	for name, values := range c.Writer.Header() {
		if strings.HasPrefix(name, "Anneal-") {
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
	_, _ = w.Write(a.Body) // a disconnected client repeats the request
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
		return nil, domain.Errorf(domain.DataLoss, "the answer that was kept under this %s cannot be opened: the server's keys were changed since; use another key", IdempotencyHeader)
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

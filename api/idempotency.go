package api

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

// Answers keep what was answered to requests with an idempotency key, for all
// servers. See idempotency.Store.
type Answers interface {
	// Claim takes a key for a request, unless somebody else has it.
	Claim(ctx context.Context, key string, digest []byte, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Renew extends the lease of a claim whose work goes on.
	Renew(ctx context.Context, claim idempotency.Claim, now time.Time, lease time.Duration) (idempotency.Claim, error)
	// Store keeps the answer to the request that holds the claim.
	Store(ctx context.Context, claim idempotency.Claim, answer []byte) error
	// Release gives the key back without an answer.
	Release(ctx context.Context, claim idempotency.Claim) error
}

// Headers of repeated requests and their answers.
const (
	idempotencyHeader = "Idempotency-Key"
	replayedHeader    = "Idempotent-Replayed"
)

// maxIdempotencyKey bounds an idempotency key, in characters.
const maxIdempotencyKey = 255

// maxKeptRefusal bounds a refusal that is kept, in bytes: refused requests cost
// their sender nothing, and must not fill the disk.
const maxKeptRefusal = 4 << 10

// claimTime is how long a key stays taken by a server that died with it; one
// that lives renews its claim. Should another take over all the same, because
// clocks differ or the store was out of reach, a change is recorded once
// nevertheless, by its command's ID.
const claimTime = 6 * time.Second

// once carries out h, unless the request's idempotency key says that it was
// carried out before: then the answer is the same. A key belongs to the
// account of its caller and to the first request that came with it, for a day.
//
// An answer is kept when it is a success or a decided refusal of at most
// maxKeptRefusal bytes: a longer one, which lists what is wrong with a large
// request, is found again when that comes again. After any other
// the same request may try again, and goes on where the first one ended: what
// it makes up, such as IDs, is made from the claim's seed, so that it finds
// the events that were recorded already.
func (c *call) once(h handler) (any, error) {
	given, ok := c.r.Header[idempotencyHeader]
	if !ok || !c.op.repeatable() {
		return h(c)
	}
	key, err := idempotencyKey(given)
	if err == nil && !c.op.givesBack {
		err = c.hasRoom() // for the answer
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
	c.view = nil // it may have been long since
	held := c.hold(claim)
	defer held.release() // unless it is settled
	result, err := h(c)
	return c.keep(slot, held, result, err)
}

// repeatable tells whether the operation takes an idempotency key: it changes
// something, or costs something, and who may do it is decided by its gate.
func (op *operation) repeatable() bool {
	return (op.method == http.MethodPost || op.method == http.MethodPatch) && (op.gate == inAccount || op.gate == byOperator || op.gate == toModels)
}

// idempotencyParameter describes the header.
var idempotencyParameter = map[string]any{"name": idempotencyHeader, "in": "header",
	"description": "What makes the request safe to repeat, such as a random UUID: with the same one it happens once, and is answered alike for 24 hours.",
	"schema":      wire.Schema{"type": "string", "minLength": 1, "maxLength": maxIdempotencyKey}}

func idempotencyKey(given []string) (string, error) {
	var v domain.Violations
	v.Require(len(given) == 1, idempotencyHeader, "is given %d times: give it once", len(given))
	n := utf8.RuneCountInString(given[0])
	v.Require(n >= 1 && n <= maxIdempotencyKey && utf8.ValidString(given[0]), idempotencyHeader,
		"must have 1 to %d characters, such as a random UUID, and not %d: or leave the header out", maxIdempotencyKey, n)
	return given[0], v.Err()
}

// A slot is where the answer to one request under one key is kept.
type slot struct {
	name   string // in the store
	digest []byte // of the request
	key    []byte // seals the answer; only the same request leads to it
}

// slot derives everything from the pepper. The key that seals the answer comes
// from the request as well, so that a stored answer tells nothing, a secret's
// value least of all, to who does not have the request that it belongs to.
func (c *call) slot(key string, request []byte) slot {
	mac := func(use string, parts ...[]byte) []byte {
		return deriveKey(c.Pepper, "idempotency "+use, parts...)
	}
	account, header := []byte(c.caller.account), []byte(key)
	return slot{
		name:   fmt.Sprintf("%s.%x", account, mac("slot", account, header)),
		digest: mac("digest", request),
		key:    mac("seal", account, header, request),
	}
}

// whole is the request as far as its answer depends on it: method, direct route,
// path, query and body, which stays readable for the handler. Of a form it is the fields
// and not what separates them, which differs from one try to the next.
func (c *call) whole() ([]byte, error) {
	body, err := c.buffer()
	if err != nil {
		return nil, err
	}
	request := fmt.Appendf(nil, "%s\n%s%s\n%s\n", c.r.Method, c.direct, c.r.URL.EscapedPath(), c.r.URL.RawQuery)
	kind, parameters, err := mime.ParseMediaType(c.r.Header.Get("Content-Type"))
	if err != nil || kind != "multipart/form-data" || c.op.form == nil { // what is no form here is read as JSON, whatever it is called
		if c.op.inference() && asksForStream(body) {
			var v domain.Violations
			v.Add(idempotencyHeader, "cannot go with stream: a streamed answer is not kept; leave out one of the two")
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
		if err != nil { // the handler will refuse it, and must not refuse the whole form for it
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
	var asked map[string]json.RawMessage // a struct would take Stream for stream
	return json.Unmarshal(body, &asked) == nil && string(asked["stream"]) == "true"
}

// buffer reads the body and puts it back for the handler. A body that is
// larger than Limits.Body comes without a key: only uploads may be that large.
func (c *call) buffer() ([]byte, error) {
	body, err := exchangeOf(c.r).hold(c.r, c.Limits.Body)
	var f *domain.Error
	switch {
	case errors.As(err, &f) && f.Reason == reasonBodyTooLarge:
		f.Message = fmt.Sprintf("with an %s the body may have at most %d bytes: send less, or leave the header out (an upload may be repeated without it)", idempotencyHeader, c.Limits.Body)
		return nil, f
	case err != nil:
		return nil, err
	}
	c.r.Body = io.NopCloser(bytes.NewReader(body))
	return body, nil
}

// claim takes the slot, and waits a little while a twin of the request is at
// work on it.
func (c *call) claim(s slot) (idempotency.Claim, error) {
	begun, pause := time.Now(), 10*time.Millisecond
	for {
		now := c.now.Add(time.Since(begun))
		claim, err := c.Answers.Claim(c.ctx, s.name, s.digest, now, claimTime)
		var fault *domain.Error
		switch {
		case err != nil && !errors.As(err, &fault) && c.ctx.Err() == nil:
			c.Logger.Error("an idempotency key could not be claimed", "request", c.id, "error", err)
			return claim, &domain.Error{Code: domain.Unavailable, Reason: "LOG_UNAVAILABLE",
				Message: "the store of idempotency keys did not answer, and nothing was done: try again"}
		case err != nil:
			if fault != nil && fault.Reason == idempotency.ReasonFull {
				c.w.Header().Set("Retry-After", strconv.Itoa(max(1, int(math.Ceil(claim.Lease.Sub(now).Seconds())))))
			}
			return claim, err
		case claim.State == idempotency.Mismatch:
			return claim, &domain.Error{Code: domain.AlreadyExists, Reason: "IDEMPOTENCY_KEY_REUSED",
				Message: "this " + idempotencyHeader + " came with another request within the last 24 hours: repeat that one exactly, or choose another key"}
		case claim.State != idempotency.InProgress:
			return claim, nil
		case time.Since(begun) > c.Limits.Twin:
			left := max(1, int(claim.Lease.Sub(now).Seconds()))
			c.w.Header().Set("Retry-After", strconv.Itoa(min(left, 5)))
			return claim, &domain.Error{Code: domain.Aborted, Reason: "IDEMPOTENCY_KEY_BUSY",
				Message: "the same request is under way: try again shortly to get its answer"}
		}
		select {
		case <-time.After(pause):
			pause = min(2*pause, 200*time.Millisecond)
		case <-c.ctx.Done():
			return claim, c.ctx.Err()
		}
	}
}

// keep stores what was answered, unless the answer was not to the request
// itself.
func (c *call) keep(s slot, held *held, result any, err error) (any, error) {
	if err == nil && result == nil || err != nil && !decided(errorOf(err)) {
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
		tooLong := domain.Errorf(domain.Aborted, "the first request with this %s was answered, but with more than is kept of an answer: look at what it changed, or ask again with another key", idempotencyHeader)
		tooLong.Reason = "ANSWER_NOT_KEPT"
		if sealed, err = s.seal(c.answered(nil, tooLong)); err != nil {
			return nil, err
		}
	}
	ctx, cancel := c.lasting()
	defer cancel()
	if err := c.Answers.Store(ctx, held.settle(), sealed); err != nil {
		c.Logger.Warn("an answer was not kept; who repeats the request finds what it recorded", "request", c.id, "error", err)
	}
	return answer, nil
}

// A held claim is renewed until it is settled.
type held struct {
	*call
	claim   idempotency.Claim // once renewing has ended
	end     chan struct{}
	ended   chan struct{}
	settled bool
}

func (c *call) hold(claim idempotency.Claim) *held {
	h := &held{call: c, claim: claim, end: make(chan struct{}), ended: make(chan struct{})}
	go h.renew(time.Now())
	return h
}

func (h *held) renew(begun time.Time) {
	defer close(h.ended)
	again := time.NewTicker(claimTime / 3)
	defer again.Stop()
	for {
		select {
		case <-h.end:
			return
		case <-again.C:
		}
		ctx, cancel := h.lasting()
		renewed, err := h.Answers.Renew(ctx, h.claim, h.now.Add(time.Since(begun)), claimTime)
		cancel()
		switch {
		case err == nil:
			h.claim = renewed
		case errors.Is(err, eventlog.ErrConflict): // somebody took over
			return
		}
	}
}

// settle ends the renewing and answers the claim as it is then.
func (h *held) settle() idempotency.Claim {
	h.settled = true
	close(h.end)
	<-h.ended
	return h.claim
}

// release gives the key back, unless the claim is settled.
func (h *held) release() {
	if h.settled {
		return
	}
	claim := h.settle()
	ctx, cancel := h.lasting()
	defer cancel()
	if err := h.Answers.Release(ctx, claim); err != nil {
		h.Logger.Warn("an idempotency key was not given back: it is free when its lease ends", "request", h.id, "error", err)
	}
}

// decided tells whether a refusal is the answer to the request itself, and not
// to the moment at which it came, or to who sent it.
func decided(f *domain.Error) bool {
	status := statusFor(f)
	undecided := []int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, statusClientClosed}
	return status < http.StatusInternalServerError && !slices.Contains(undecided, status) && f.Code != domain.Aborted
}

// A keptAnswer is an answer as it was, or will be, sent.
type keptAnswer struct {
	Status   int         `json:"status"`
	Header   http.Header `json:"header"` // what the handler set
	Body     []byte      `json:"body"`
	replayed bool
}

// answered writes an answer down instead of sending it.
func (c *call) answered(result any, err error) keptAnswer {
	to := &capture{header: http.Header{}}
	if err != nil {
		refuse(to, errorOf(err), c.id, c.op.inference())
	} else {
		answerWith(to, result)
	}
	for name, values := range c.w.Header() {
		if strings.HasPrefix(name, "Anneal-") {
			to.header[name] = values
		}
	}
	return keptAnswer{Status: to.status, Header: to.header, Body: to.body.Bytes()}
}

// send sends the answer.
func (a keptAnswer) send(w http.ResponseWriter) {
	for name, values := range a.Header {
		w.Header()[name] = values
	}
	if a.replayed {
		w.Header().Set(replayedHeader, "true")
	}
	w.WriteHeader(a.Status)
	_, _ = w.Write(a.Body) // a client that is gone asks again
}

func (s slot) seal(a keptAnswer) ([]byte, error) {
	plain, err := json.Marshal(a)
	if err != nil {
		return nil, err
	}
	return sealed.Encrypt(s.key, plain, []byte(s.name))
}

func (s slot) open(ciphertext []byte) (any, error) {
	plain, err := sealed.Decrypt(s.key, ciphertext, []byte(s.name))
	if err != nil {
		return nil, domain.Errorf(domain.DataLoss, "the answer that was kept under this %s cannot be opened: the server's keys were changed since; use another key", idempotencyHeader)
	}
	answer := keptAnswer{replayed: true}
	return answer, json.Unmarshal(plain, &answer)
}

// A capture is a ResponseWriter that keeps what is written.
type capture struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (c *capture) Header() http.Header            { return c.header }
func (c *capture) WriteHeader(status int)         { c.status = status }
func (c *capture) Write(data []byte) (int, error) { return c.body.Write(data) }

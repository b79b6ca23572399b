package balance

import "time"

// Constants of the circuit breakers.
const (
	breakerFailures = 5               // consecutive failures before the first token that open a breaker
	breakerPause    = 5 * time.Second // first time for which a breaker is open; each further one is twice as long
	maxBreakerPause = time.Minute
	hangTime        = 10 * time.Second // a replica hangs after this time without a first token,
	hangFactor      = 8                // and after this many times the predicted time
)

// A breaker keeps requests away from a replica that fails. It is closed while requests succeed,
// open for a pause after breakerFailures consecutive failures, and then half-open: it admits one
// request, whose outcome closes it or opens it again.
type breaker struct {
	failures int           // consecutive failures before the first token
	opened   bool          // the breaker is open or half-open
	until    time.Duration // when an open breaker becomes half-open
	pause    time.Duration
	probe    *InFlight // request that a half-open breaker has admitted; nil if there is none
}

// admits reports whether the replica may get a request.
func (b *breaker) admits(now time.Duration) bool {
	return !b.opened || now >= b.until && b.probe == nil
}

// send records that the replica gets a request.
func (b *breaker) send(now time.Duration, s *InFlight) {
	if b.opened && b.admits(now) {
		b.probe = s
	}
}

// succeed records the first token of a request.
func (b *breaker) succeed() { *b = breaker{} }

// fail records that a request failed before its first token. opened reports whether that opened the
// breaker.
func (b *breaker) fail(now time.Duration, s *InFlight) (opened bool) {
	b.failures++
	switch {
	case b.opened && b.probe != s: // it was sent before the breaker opened, or all breakers were open
		return false
	case !b.opened && b.failures < breakerFailures:
		return false
	}
	b.pause = min(max(2*b.pause, breakerPause), maxBreakerPause)
	b.opened, b.until, b.probe = true, now+b.pause, nil
	return true
}

// cancel records that a request ended without a sign that the replica fails or works.
func (b *breaker) cancel(s *InFlight) {
	if b.probe == s {
		b.probe = nil
	}
}

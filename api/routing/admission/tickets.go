package admission

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"
)

// Constants of tickets.
const (
	MaxReturn    = 120 * time.Second // maximum time until a refused client may return
	graceFixed   = 3 * time.Second   // a ticket is valid this long after its time of return,
	graceShare   = 15                // and this percentage of the time until then
	maxPromises  = 8192              // promises that a gateway remembers for one deployment
	returnsKnown = 16                // promises after which the observed rate of return counts
)

// A Ticket promises an account that a deployment admits one of its requests at a time. Times are
// those of the clock of the gateway that signed it, so that other gateways can check it.
type Ticket struct {
	Issued time.Time     // with a precision of a millisecond
	Wait   time.Duration // time until the return, in whole seconds
	ID     uint64        // random
}

// Grace returns how long a ticket is valid after its time of return.
func (t Ticket) Grace() time.Duration { return graceFixed + t.Wait*graceShare/100 }

// Open reports whether the time now is in the ticket's window.
func (t Ticket) Open(now time.Time) bool {
	back := t.Issued.Add(t.Wait)
	return !now.Before(back) && !now.After(back.Add(t.Grace()))
}

// A Signer signs tickets. Signers with the same secret accept one another's tickets.
type Signer struct{ key []byte }

// NewSigner returns a Signer whose key is derived from a secret.
func NewSigner(secret []byte) Signer {
	mac := hmac.New(sha256.New, secret)
	_, _ = mac.Write([]byte("anneal: tickets of admission queues")) // writing to a hash never fails
	return Signer{mac.Sum(nil)}
}

// ticketBytes are the bytes of a ticket without its MAC, of which macBytes are sent.
const ticketBytes, macBytes = 8 + 2 + 8, 16

// Sign returns the text of a ticket. scope names the account and the deployment.
func (s Signer) Sign(scope string, t Ticket) string {
	data := binary.BigEndian.AppendUint64(nil, uint64(t.Issued.UnixMilli()))
	data = binary.BigEndian.AppendUint16(data, uint16(t.Wait/time.Second))
	data = binary.BigEndian.AppendUint64(data, t.ID)
	return base64.RawURLEncoding.EncodeToString(append(data, s.mac(scope, data)...))
}

// Verify returns the ticket that Sign made for the scope; false for any other text.
func (s Signer) Verify(scope, text string) (t Ticket, ok bool) {
	data, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(data) != ticketBytes+macBytes ||
		!hmac.Equal(s.mac(scope, data[:ticketBytes]), data[ticketBytes:]) {
		return Ticket{}, false
	}
	return Ticket{Issued: time.UnixMilli(int64(binary.BigEndian.Uint64(data))),
		Wait: time.Duration(binary.BigEndian.Uint16(data[8:])) * time.Second, ID: binary.BigEndian.Uint64(data[10:])}, true
}

func (s Signer) mac(scope string, data []byte) []byte {
	mac := hmac.New(sha256.New, s.key)
	_, _ = mac.Write([]byte(scope))
	_, _ = mac.Write([]byte{0})
	_, _ = mac.Write(data)
	return mac.Sum(nil)[:macBytes]
}

// A promise is a ticket that was issued to an account.
type promise struct {
	Ticket
	cost int64
}

// Promises remembers the tickets of one deployment that this gateway has issued, and those of other
// gateways that it has honoured.
type Promises struct {
	open     map[string][]promise // by account, in the order in which they were issued
	count    int
	used     map[uint64]time.Time // by ID of a ticket: when it expires
	returned float64              // promises that were kept, and
	ended    float64              // all that were kept or expired; both decay
}

// NewPromises returns Promises without a promise.
func NewPromises() *Promises {
	return &Promises{open: map[string][]promise{}, used: map[uint64]time.Time{}}
}

// Add records a ticket that is issued to an account. It returns false if no further one can be
// remembered.
func (p *Promises) Add(now time.Time, account string, t Ticket, cost int64) bool {
	if p.count >= maxPromises {
		p.expire(now)
	}
	if p.count >= maxPromises {
		return false
	}
	p.open[account] = append(p.open[account], promise{t, cost})
	p.count++
	return true
}

// Redeem reports whether a ticket is valid now and was not used at this gateway, and marks it as used.
func (p *Promises) Redeem(now time.Time, account string, t Ticket) bool {
	if _, used := p.used[t.ID]; used || !t.Open(now) {
		return false
	}
	if len(p.used) >= maxPromises {
		p.expire(now)
	}
	if len(p.used) >= maxPromises {
		return false
	}
	if at := slices.IndexFunc(p.open[account], func(one promise) bool { return one.ID == t.ID }); at >= 0 {
		p.remove(account, at)
	} else {
		p.end(true) // another gateway has issued it
	}
	p.used[t.ID] = t.Issued.Add(t.Wait + t.Grace())
	return true
}

// RedeemAny is for a client that does not send its ticket: it uses the promise of one of the account's
// tickets that are valid now. The client that has the ticket can still redeem it, because RedeemAny cannot
// tell a client that returns from a new one.
func (p *Promises) RedeemAny(now time.Time, account string) (t Ticket, ok bool) {
	at := slices.IndexFunc(p.open[account], func(one promise) bool { return one.Open(now) })
	if at < 0 {
		return t, false
	}
	t = p.open[account][at].Ticket
	p.remove(account, at)
	return t, true
}

// Of returns the number of promises to an account.
func (p *Promises) Of(account string) int { return len(p.open[account]) }

func (p *Promises) remove(account string, at int) {
	list := slices.Delete(p.open[account], at, at+1)
	if p.open[account] = list; len(list) == 0 {
		delete(p.open, account)
	}
	p.count--
	p.end(true)
}

// end records that a promise was kept or expired.
func (p *Promises) end(kept bool) {
	if p.ended++; kept {
		p.returned++
	}
	if p.ended >= 1024 {
		p.ended, p.returned = p.ended/2, p.returned/2
	}
}

// expire forgets the promises whose clients did not return.
func (p *Promises) expire(now time.Time) {
	expired := func(t Ticket) bool { return now.After(t.Issued.Add(t.Wait + t.Grace())) }
	for account, list := range p.open {
		kept := slices.DeleteFunc(list, func(one promise) bool { return expired(one.Ticket) })
		for range len(list) - len(kept) {
			p.count--
			p.end(false)
		}
		if p.open[account] = kept; len(kept) == 0 {
			delete(p.open, account)
		}
	}
	for id, end := range p.used {
		if now.After(end) {
			delete(p.used, id)
		}
	}
}

// Cost returns the cost of the promises to an account, weighted by the observed rate at which clients
// return.
func (p *Promises) Cost(now time.Time, account string) int64 {
	if len(p.open[account]) == 0 {
		return 0
	}
	p.expire(now)
	sum, share := int64(0), 1.0
	for _, one := range p.open[account] {
		sum += one.cost
	}
	if p.ended >= returnsKnown {
		share = p.returned / p.ended
	}
	return int64(float64(sum) * share)
}

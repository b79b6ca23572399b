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
	maxPromises  = 8192              // promises that a gateway remembers for one deployment,
	maxAccount   = 1024              // and for one account in one class
	maxUsed      = 1 << 16           // tickets that a gateway remembers as used
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
	body uint64 // Request.Body
}

// Promises remembers the tickets of one deployment that this gateway has issued, and those of other
// gateways that it has honoured.
type Promises struct {
	open     map[flowKey]*promised
	count    int                  // number of promises in open
	used     map[uint64]time.Time // by ID of a ticket: when it expires
	checked  time.Time            // when expired promises were last removed
	returned float64              // promises that were kept, and
	ended    float64              // all that were kept or expired; both decay
}

// promised are the promises to one account in one class.
type promised struct {
	list   []promise // in the order in which they were issued
	cost   int64     // sum of their costs
	weight int64     // share of the account
}

// NewPromises returns Promises without a promise.
func NewPromises() *Promises {
	return &Promises{open: map[flowKey]*promised{}, used: map[uint64]time.Time{}}
}

// Add records a ticket that is issued for the request r. It returns false if no further one can be
// remembered.
func (p *Promises) Add(now time.Time, r *Request, t Ticket) bool {
	if p.count >= maxPromises {
		p.expire(now)
	}
	if p.count >= maxPromises {
		return false
	}
	key := flowKey{r.Account, r.Class}
	of := p.open[key]
	if of != nil && len(of.list) >= maxAccount {
		return false
	}
	if of == nil {
		of = &promised{}
		p.open[key] = of
	}
	cost := r.cost(r.Prompt, r.Answer)
	of.list, of.cost, of.weight = append(of.list, promise{t, cost, r.Body}), of.cost+cost, max(1, r.Weight)
	p.count++
	return true
}

// Redeem reports whether a ticket is valid now and was not used at this gateway, and marks it as
// used.
func (p *Promises) Redeem(now time.Time, account string, t Ticket) bool {
	if _, used := p.used[t.ID]; used || !t.Open(now) {
		return false
	}
	if len(p.used) >= maxUsed {
		p.expire(now)
	}
	if len(p.used) >= maxUsed {
		return false
	}
	p.used[t.ID] = t.Issued.Add(t.Wait + t.Grace())
	for class := range classes {
		if p.keep(flowKey{account, class}, func(one promise) bool { return one.ID == t.ID }) != nil {
			return true
		}
	}
	p.end(true) // another gateway has issued it
	return true
}

// RedeemBody is for a client that sends its request again without the ticket: it redeems the ticket
// that this gateway has issued to the account for a request with the same body, if it is valid now.
func (p *Promises) RedeemBody(now time.Time, account string, class Class, body uint64) (t Ticket, ok bool) {
	if body == 0 || len(p.used) >= maxUsed {
		return t, false
	}
	kept := p.keep(flowKey{account, class}, func(one promise) bool { return one.body == body && one.Open(now) })
	if kept == nil {
		return t, false
	}
	p.used[kept.ID] = kept.Issued.Add(kept.Wait + kept.Grace())
	return kept.Ticket, true
}

// Len returns the number of promises.
func (p *Promises) Len() int { return p.count }

// keep removes the first promise for which match returns true, and records that it was kept.
func (p *Promises) keep(key flowKey, match func(promise) bool) *promise {
	of := p.open[key]
	if of == nil {
		return nil
	}
	at := slices.IndexFunc(of.list, match)
	if at < 0 {
		return nil
	}
	kept := of.list[at]
	if of.list, of.cost = slices.Delete(of.list, at, at+1), of.cost-kept.cost; len(of.list) == 0 {
		delete(p.open, key)
	}
	p.count--
	p.end(true)
	return &kept
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
	p.checked = now
	for key, of := range p.open {
		of.list = slices.DeleteFunc(of.list, func(one promise) bool {
			expired := now.After(one.Issued.Add(one.Wait + one.Grace()))
			if expired {
				of.cost -= one.cost
				p.count--
				p.end(false)
			}
			return expired
		})
		if len(of.list) == 0 {
			delete(p.open, key)
		}
	}
	for id, end := range p.used {
		if now.After(end) {
			delete(p.used, id)
		}
	}
}

// expected calls add with the cost of the promises of each account and class, weighted by the
// observed rate at which clients return, and with the weight of the account.
func (p *Promises) expected(now time.Time, add func(key flowKey, weight, cost int64)) {
	if now.Sub(p.checked) >= time.Second {
		p.expire(now)
	}
	share := 1.0
	if p.ended >= returnsKnown {
		share = p.returned / p.ended
	}
	for key, of := range p.open {
		add(key, of.weight, int64(float64(of.cost)*share))
	}
}

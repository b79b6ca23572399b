// Package fair shares compute among accounts in proportion to their weights. It implements
// start-time fair queueing (Goyal, Vin and Cheng 1996), with tokens as the measure of time, so the
// order in which requests are served depends only on the order in which they arrive.
package fair

import "maps"

// A Queue has the virtual times of the accounts that have requests. The zero value is ready to use.
// It is not safe for concurrent use.
type Queue struct {
	now      int64 // the lowest virtual time of an account with requests so far
	accounts map[string]*Account
}

// An Account is an account of a Queue.
type Account struct {
	time     int64 // virtual time: tokens that were computed for the account, divided by its weight
	weight   int64
	requests int
}

// unit is the virtual time of one token of an account with the weight 1.
const unit = 1 << 16

// Join adds a request of an account and sets the weight of the account; 0 stands for 1. An account
// that had no requests gets no credit for the time during which it was idle.
func (q *Queue) Join(name string, weight int) *Account {
	q.advance()
	a := q.accounts[name]
	if a == nil {
		a = new(Account)
		if q.accounts == nil {
			q.accounts = map[string]*Account{}
		}
		q.accounts[name] = a
	}
	if a.requests == 0 {
		a.time = max(a.time, q.now)
	}
	a.requests++
	a.weight = int64(max(weight, 1))
	return a
}

// Leave removes a request of an account.
func (q *Queue) Leave(a *Account) {
	a.requests--
	q.advance()
	maps.DeleteFunc(q.accounts, func(_ string, a *Account) bool { return a.requests == 0 && a.time <= q.now })
}

// Charge adds tokens that are computed for an account.
func (a *Account) Charge(tokens int) { a.time += int64(tokens) * unit / a.weight }

// Before reports whether a request of the account a comes before one of the account b. Neither
// comes before the other if they have the same virtual time.
func (a *Account) Before(b *Account) bool { return a.time < b.time }

// advance sets q.now to the lowest virtual time of the accounts with requests. If no account has
// any, it sets q.now to the highest virtual time, so that all accounts start equal.
func (q *Queue) advance() {
	lowest, idle := int64(0), true
	for _, a := range q.accounts {
		if a.requests > 0 && (idle || a.time < lowest) {
			lowest, idle = a.time, false
		}
	}
	if idle {
		for _, a := range q.accounts {
			q.now = max(q.now, a.time)
		}
		return
	}
	q.now = max(q.now, lowest)
}

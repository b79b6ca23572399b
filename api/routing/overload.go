package routing

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"anneal/api/request"
	"anneal/api/routing/admission"
	"anneal/domain"
)

// Priorities are the values of request.PriorityHeader, by class.
var Priorities = domain.RequestPriorities

// classOf returns the class of a call: that in its header, which can be no higher than the priority
// of its API key, or else the priority of the key.
func classOf(c *request.Call) (admission.Class, error) {
	if c.Background {
		return admission.Batch, nil
	}
	highest := admission.Class(max(0, slices.Index(Priorities, c.Principal.Priority)))
	given := ""
	if c.Request != nil {
		given = c.Request.Header.Get(request.PriorityHeader)
	}
	if given == "" {
		return highest, nil
	}
	class := admission.Class(slices.Index(Priorities, given))
	switch {
	case class < 0:
		return 0, domain.Errorf(domain.InvalidArgument, "the header %s is %.64q: it must be %s or %s",
			request.PriorityHeader, given, Priorities[0], Priorities[1])
	case class < highest:
		return 0, domain.Errorf(domain.InvalidArgument, "the header %s is %s, and the priority of the API key is %s: leave "+
			"the header out, or use a key with the priority %s", request.PriorityHeader, given, Priorities[highest], given)
	}
	return class, nil
}

// enter adds a request to the queue, or returns the error that refuses it.
func (q *queue) enter(w *waiter, now time.Duration) error {
	s := w.state
	err := s.c.Admission.Decide(func() error {
		if why := q.admission.Full(&w.request); why != "" { // the request keeps its ticket
			return q.refuse(w, domain.Errorf(domain.ResourceExhausted,
				"the admission queue of %s is full: %s: send the request again later, or raise maxReplicaCount",
				q.deployment, why), 0)
		}
		back, honoured := q.redeem(s)
		if honoured {
			q.counts.honoured[w.request.Class]++
			s.arrival = s.arrival.Add(-back.Wait)
			w.request.Arrival -= back.Wait
		}
		if honoured || s.c.Background || s.q.MaxWait > 0 {
			return nil
		}
		q.admission.Add(&w.request)
		wait, known := q.admission.PredictWait(now, &w.request, q.promises, time.Now())
		q.admission.Remove(&w.request)
		if limit := s.c.Limits.QueueWait; known && wait > limit {
			return q.refuse(w, q.overloaded(w, wait, limit), wait)
		}
		return nil
	})
	if err != nil {
		return err
	}
	q.admission.Add(&w.request)
	w.admitted = make(chan struct{})
	q.waiting[w.request.ID] = w
	return nil
}

// keepPromise marks the ticket of a request that need not wait as used.
func (q *queue) keepPromise(s *sendState) {
	if q.promises.Len() == 0 {
		return
	}
	if _, ok := q.redeem(s); ok {
		q.counts.honoured[s.class]++
	}
}

// redeem uses a ticket of the call: that in its header, or the one that its account got from this
// gateway for the same request, because not every client returns the header.
func (q *queue) redeem(s *sendState) (admission.Ticket, bool) {
	account, now := s.c.Principal.Account, time.Now()
	if s.c.Request != nil {
		if text := s.c.Request.Header.Get(request.TicketHeader); text != "" {
			if t, ok := s.router.signer.Verify(q.scope(account), text); ok && q.promises.Redeem(now, account, t) {
				return t, true
			}
		}
	}
	return q.promises.RedeemBody(now, account, s.class, request.BodyHash(s.c))
}

func (q *queue) scope(account string) string {
	return fmt.Sprintf("%s\x00%s\x00%d", account, q.deployment, q.created)
}

// overloaded returns the error of a request with a long predicted wait. It issues a ticket.
func (q *queue) overloaded(w *waiter, wait, limit time.Duration) *domain.Error {
	seconds, again := int(math.Ceil(wait.Seconds())), "send the request again later"
	if ticket := (admission.Ticket{Issued: time.UnixMilli(time.Now().UnixMilli()),
		Wait: time.Duration(seconds) * time.Second, ID: rand.Uint64()}); ticket.Wait <= admission.MaxReturn {
		account := w.request.Account
		w.request.Body = request.BodyHash(w.state.c)
		if q.promises.Add(time.Now(), &w.request, ticket) {
			w.state.c.Writer.Header().Set(request.TicketHeader, w.state.router.signer.Sign(q.scope(account), ticket))
			again = fmt.Sprintf("send the request again in %d s, within %.1f s from then, with the header %s of this response, "+
				"and it is admitted", seconds, ticket.Grace().Seconds(), request.TicketHeader)
		}
	}
	return &domain.Error{Code: domain.ResourceExhausted, Message: fmt.Sprintf(
		"%s is overloaded: the request would wait about %d s for a replica, and the limit is %s (--max-queue-wait): %s, or "+
			"raise maxReplicaCount", q.deployment, seconds, limit, again)}
}

// ReasonOverloaded is the reason of errors of requests that the admission queue refuses.
const ReasonOverloaded = "DEPLOYMENT_OVERLOADED"

// refuse counts a refused request, and sets the header Retry-After.
func (q *queue) refuse(w *waiter, err *domain.Error, wait time.Duration) error {
	q.counts.refused[w.request.Class]++
	if wait > 0 {
		w.state.c.Writer.Header().Set("Retry-After",
			strconv.Itoa(int(math.Ceil(min(wait, admission.MaxReturn).Seconds()))))
	}
	err.Reason = ReasonOverloaded
	return err
}

// tooLong returns the error of a request that has waited in the queue for the maximum time.
func tooLong(s *sendState) error {
	limit := s.c.Limits.Wake
	if s.q.MaxWait > 0 {
		limit = s.q.MaxWait
	}
	return &domain.Error{Code: domain.ResourceExhausted, Reason: ReasonOverloaded, Message: fmt.Sprintf(
		"%s is overloaded: the request has waited %s for a replica, which is the limit: send it again later, or raise "+
			"maxReplicaCount", s.q.Deployment, limit)}
}

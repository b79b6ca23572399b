package agent

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"anneal/domain"
	"anneal/workers/protocol"
)

// Until the desk says otherwise.
const (
	interval    = 2 * time.Second
	beatTimeout = 5 * time.Second
)

// beat says what runs, does what the answer says, and answers the time until
// the next beat. It fails when the node is another agent's.
func (a *Agent) beat(ctx, life context.Context) (time.Duration, error) {
	ask, cancel := context.WithTimeout(ctx, beatTimeout)
	defer cancel()
	said := a.state()
	var orders protocol.Assignments
	err := a.request(ask, protocol.HeartbeatSubject(a.options.Node), said, &orders)
	var fault *domain.Error
	switch {
	case ctx.Err() != nil:
		return 0, nil
	case errors.As(err, &fault) && fault.Reason == protocol.TakenOver:
		return 0, err
	case fault != nil:
		a.log.Error("the control plane refuses this agent", "error", err)
		return 5 * interval, nil
	case err != nil:
		a.log.Debug("nobody answers the beat", "error", err)
		return interval / 4, nil
	}
	a.apply(life, said, orders)
	if orders.Interval <= 0 || orders.Interval > time.Minute {
		return interval, nil
	}
	return orders.Interval, nil
}

// request asks the desk. A refusal is a fault; all else that goes wrong is none.
func (a *Agent) request(ctx context.Context, subject string, question, answer any) error {
	data, err := protocol.Marshal(question)
	if err != nil {
		return err
	}
	reply, err := a.conn.RequestWithContext(ctx, subject, data)
	if err != nil {
		return err
	}
	return protocol.Unmarshal(reply.Data, answer)
}

// state is all that runs, and how far it is.
func (a *Agent) state() protocol.Heartbeat {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.beats++
	b := protocol.Heartbeat{Version: protocol.Version, Node: a.spec, Boot: a.boot, Number: a.beats, Seen: a.seen, Attempts: a.begun.lost()}
	more, room := false, protocol.MaxRows
	for _, id := range slices.Sorted(maps.Keys(a.attempts)) {
		listed, left := a.attempts[id].state(room)
		b.Attempts = append(b.Attempts, listed)
		more, room = more || left, room-len(listed.Rows)
	}
	for _, id := range slices.Sorted(maps.Keys(a.replicas)) {
		b.Replicas = append(b.Replicas, a.replicas[id].state())
	}
	if more {
		a.beatSoon()
	}
	return b
}

// apply starts what is missing and stops what the beat listed and the orders
// do not keep.
func (a *Agent) apply(life context.Context, said protocol.Heartbeat, orders protocol.Assignments) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = max(a.seen, orders.Position)
	keep := map[string]bool{}
	for _, id := range orders.Keep {
		keep[id] = true
	}
	for _, listed := range said.Attempts {
		id := listed.ID()
		t := a.attempts[id]
		switch {
		case keep[id] && t != nil:
			t.acknowledge(orders.Acked[id])
		case keep[id]:
		case t == nil:
			a.begun.forget(id)
		default:
			a.drop(id, t)
		}
	}
	equip := map[string]protocol.ReplicaAddons{}
	for _, one := range orders.Addons {
		equip[one.Replica] = one
	}
	for _, listed := range said.Replicas {
		id := listed.ID()
		if keep[id] {
			a.replicas[id].addons.equip(listed.Addons, equip[id])
			continue
		}
		a.replicas[id].stop()
		delete(a.replicas, id)
	}
	for _, id := range orders.Cancel {
		if t := a.attempts[id]; t != nil {
			t.stop(errCancelled)
		}
	}
	if !a.leaving {
		a.start(life, orders)
	}
}

// drop stops an attempt that is not wanted; it is listed until it has ended.
func (a *Agent) drop(id string, t *attempt) {
	t.stop(errUnwanted)
	select {
	case <-t.done:
		delete(a.attempts, id)
		a.begun.forget(id)
	default:
	}
}

// start begins what is new. An attempt that was begun before is never begun
// again: see begun.
func (a *Agent) start(life context.Context, orders protocol.Assignments) {
	for _, order := range orders.Train {
		id := order.ID()
		if a.attempts[id] != nil || a.begun.has(id) {
			continue
		}
		noted := a.begun.add(order)
		var before []<-chan struct{} // earlier attempts of the job, which may still be stopping
		for _, other := range a.attempts {
			if other.order.Job == order.Job {
				before = append(before, other.done)
			}
		}
		t := newAttempt(a, life, order)
		a.attempts[id] = t
		a.work.Go(func() { t.run(before, noted) })
	}
	for _, order := range orders.Serve {
		if id := order.ID(); a.replicas[id] == nil {
			r := newReplica(a, life, order)
			a.replicas[id] = r
			a.work.Go(r.run)
		}
	}
	if len(orders.Train)+len(orders.Serve) > 0 {
		a.beatSoon()
	}
}

// Why an attempt is stopped.
var (
	errUnwanted  = errors.New("the attempt is over")
	errCancelled = errors.New("the job was cancelled")
	errLeaving   = errors.New("the node is shut down")
)

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

const (
	defaultInterval  = 2 * time.Second // interval of the heartbeats until a reply sets another
	queuedInterval   = time.Second     // maximum interval of the heartbeats while requests wait in the queue of a replica
	heartbeatTimeout = 5 * time.Second
)

// heartbeat sends a heartbeat, applies the assignments in the reply, and returns the time until the
// next one. It returns an error when another agent has registered as this node, so that this agent
// must stop.
func (a *Agent) heartbeat(ctx, life context.Context) (time.Duration, error) {
	a.measureLoads(life)
	requestCtx, cancel := context.WithTimeout(ctx, heartbeatTimeout)
	defer cancel()
	sent := a.state()
	var assignments protocol.Assignments
	err := a.request(requestCtx, protocol.HeartbeatSubject(a.options.Node), sent, &assignments)
	var refused *domain.Error
	if ctx.Err() != nil {
		return 0, nil
	}
	a.meters.heartbeat(err)
	switch {
	case errors.As(err, &refused) && refused.Reason == protocol.TakenOver:
		return 0, err
	case refused != nil:
		a.log.Error("the control plane refused the heartbeat: the node gets no new work until one is accepted", "error", err)
		return 5 * defaultInterval, nil
	case err != nil:
		a.log.Debug("the control plane did not reply to the heartbeat: trying again", "error", err)
		return defaultInterval / 4, nil
	}
	a.apply(life, sent, assignments)
	interval := assignments.Interval
	if interval <= 0 || interval > time.Minute {
		interval = defaultInterval
	}
	if slices.ContainsFunc(sent.Replicas, func(r protocol.Replica) bool { return r.Load.Queued > 0 }) {
		interval = min(interval, queuedInterval) // so that the autoscaler soon sees that the queue grows
	}
	return interval, nil
}

// request sends a request to the coordinator and decodes the reply. A *domain.Error is permanent:
// the coordinator refused the request, the request is too large, or the reply cannot be decoded.
// After other errors the caller can try again, because the connection failed.
func (a *Agent) request(ctx context.Context, subject string, request, reply any) error {
	data, err := protocol.Marshal(request)
	if err != nil {
		return err
	}
	m, err := a.conn.RequestWithContext(ctx, subject, data)
	if err != nil {
		return err
	}
	return protocol.Unmarshal(m.Data, reply)
}

// state returns the next heartbeat, with all work that runs on the node and its progress.
func (a *Agent) state() protocol.Heartbeat {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.number++
	h := protocol.Heartbeat{Version: protocol.Version, Node: a.spec, Boot: a.boot, Number: a.number, Seen: a.seen,
		Attempts: a.started.lost(), Devices: a.devices.status()}
	more, rows := false, protocol.MaxRows
	for _, id := range slices.Sorted(maps.Keys(a.attempts)) {
		listed, left := a.attempts[id].state(rows)
		h.Attempts = append(h.Attempts, listed)
		more, rows = more || left, rows-len(listed.Rows)
	}
	for _, id := range slices.Sorted(maps.Keys(a.replicas)) {
		h.Replicas = append(h.Replicas, a.replicas[id].state())
	}
	if more {
		a.requestHeartbeat()
	}
	return h
}

// apply starts the work in assignments that is not running. It stops the work that the heartbeat
// sent listed and that is no longer assigned.
func (a *Agent) apply(life context.Context, sent protocol.Heartbeat, assignments protocol.Assignments) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.seen = max(a.seen, assignments.Position)
	keep := map[string]bool{}
	for _, id := range assignments.Keep {
		keep[id] = true
	}
	for _, listed := range sent.Attempts {
		id := listed.ID()
		t := a.attempts[id]
		switch {
		case keep[id] && t != nil:
			t.acknowledge(assignments.Acked[id])
		case keep[id]:
		case t == nil:
			a.started.forget(id)
		default:
			a.drop(id, t)
		}
	}
	addons := map[string]protocol.ReplicaAddons{}
	for _, one := range assignments.Addons {
		addons[one.Replica] = one
	}
	for _, listed := range sent.Replicas {
		id := listed.ID()
		if keep[id] {
			a.replicas[id].addons.apply(listed.Addons, addons[id])
			continue
		}
		a.replicas[id].stop()
		delete(a.replicas, id)
	}
	for _, id := range assignments.Cancel {
		if t := a.attempts[id]; t != nil {
			t.stop(errCancelled)
		}
	}
	for _, id := range assignments.Idle {
		if t := a.attempts[id]; t != nil {
			stopIdle(t)
		}
	}
	if !a.leaving {
		a.start(life, assignments)
	}
}

// drop stops an attempt that the coordinator no longer assigns. Heartbeats list it until it has
// ended.
func (a *Agent) drop(id string, t *attempt) {
	t.stop(errUnwanted)
	select {
	case <-t.done:
		delete(a.attempts, id)
		a.started.forget(id)
	default:
	}
}

// start starts the assigned attempts and replicas that are not running. It never starts an attempt
// twice, even after a restart of the agent: see startedAttempts.
func (a *Agent) start(life context.Context, assignments protocol.Assignments) {
	train := slices.DeleteFunc(slices.Clone(assignments.Train), func(assignment protocol.TrainAssignment) bool {
		id := assignment.ID()
		return a.attempts[id] != nil || a.started.has(id)
	})
	recordErr := a.started.add(train...)
	for _, assignment := range train {
		id := assignment.ID()
		var before []*attempt // earlier attempts of the job on this node, which may still be stopping
		for _, other := range a.attempts {
			if other.assignment.Job == assignment.Job {
				before = append(before, other)
			}
		}
		t := newAttempt(a, life, assignment)
		a.attempts[id] = t
		a.work.Go(func() { t.run(before, recordErr) })
	}
	for _, assignment := range assignments.Serve {
		if id := assignment.ID(); a.replicas[id] == nil {
			r := newReplica(a, life, assignment)
			a.replicas[id] = r
			a.work.Go(r.run)
		}
	}
	if len(assignments.Train)+len(assignments.Serve) > 0 {
		a.requestHeartbeat()
	}
}

// Reasons for which an attempt is stopped.
var (
	errUnwanted  = errors.New("the attempt is no longer assigned to the node")
	errCancelled = errors.New("the job was canceled")
	errLeaving   = errors.New("the node is shutting down")
)

package coordinator

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/protocol"
)

const (
	gather     = 50 * time.Millisecond // changes that come together are looked at together
	purgeAgain = time.Minute           // what could not be purged is tried again
)

// nudge makes the agents beat for whom something has changed, until the desk closes.
func (d *Coordinator) nudge() {
	for after := d.World.Position(); d.changed(after, 0); {
		view := d.World.View()
		for node := range touched(view, after) {
			if err := d.Conn.Publish(protocol.WakeSubject(node.ID()), nil); err != nil {
				d.log.Debug("a node is not nudged; it beats soon anyway", "node", node, "error", err)
			}
		}
		after = view.Position
	}
}

// changed waits until the world is beyond a position, and a moment more; false
// when the desk closes. It also returns when at most so much time has passed,
// if that is not 0.
func (d *Coordinator) changed(after uint64, most time.Duration) bool {
	var late <-chan time.Time
	if most > 0 {
		timer := time.NewTimer(most)
		defer timer.Stop()
		late = timer.C
	}
	select {
	case <-d.World.Changed(after):
	case <-late:
	case <-d.ctx.Done():
		return false
	}
	pause := time.NewTimer(gather)
	defer pause.Stop()
	select {
	case <-pause.C:
	case <-d.ctx.Done():
	}
	return d.ctx.Err() == nil
}

// touched are the nodes for whom something has changed since a position.
func touched(v *projections.View, after uint64) map[domain.Name]bool {
	nodes := map[domain.Name]bool{}
	for row := range v.Nodes.All() {
		if row.Version > after {
			nodes[row.Name] = true
		}
	}
	for j := range jobs(v) {
		if j.Version > after && j.Life.Active() {
			nodes[j.Life.Nodes[0]] = true
		}
	}
	for row := range v.Deployments.All() {
		if row.Version > after {
			for _, r := range row.State.Replicas {
				nodes[r.Node] = true
			}
		}
	}
	for row := range v.DeployedModels.All() {
		if deployment, ok := v.Deployments.Get(domain.Name(row.State.Deployment)); ok && row.Version > after {
			for _, r := range deployment.State.Replicas {
				nodes[r.Node] = true
			}
		}
	}
	return nodes
}

// purge forgets the jobs that are deleted and have stopped, until the desk
// closes. The reconciler removes their files afterwards.
func (d *Coordinator) purge() {
	for after := uint64(0); ; {
		view := d.World.View()
		for j := range jobs(view) {
			if j.Life.State != domain.JobCleaningState {
				continue
			}
			if err := d.purgeJob(j.Name); err != nil && d.ctx.Err() == nil {
				d.log.Warn("a deleted job could not be purged yet", "job", j.Name, "error", err)
			}
		}
		after = view.Position
		if !d.changed(after, purgeAgain) {
			return
		}
	}
}

func (d *Coordinator) purgeJob(name domain.Name) error {
	ctx, cancel := context.WithTimeout(d.ctx, purgeAgain)
	defer cancel()
	result, err := eventlog.Do(ctx, d.Log, d.World, eventlog.Request{Time: d.Now(), Actor: "desk"}, domain.IntendJob(name, domain.PurgeJob{}))
	if err != nil {
		return err
	}
	d.World.Live().Forget(name)
	return d.World.WaitFor(ctx, result.Position())
}

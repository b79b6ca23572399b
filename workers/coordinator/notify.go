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
	gatherDelay = 3 * time.Millisecond  // changes of the world within this time are handled together
	notifyPause = 25 * time.Millisecond // minimum time between two rounds of waking agents
	purgeDelay  = 50 * time.Millisecond // minimum time between two searches for deleted jobs
	purgeRetry  = time.Minute           // time after which purging a job is tried again
)

// notify wakes the agents whose assignments have changed, until ctx is done.
func (c *Coordinator) notify(ctx context.Context) {
	world := c.recorder.world
	for after := world.Position(); waitForChange(ctx, world, after, 0, gatherDelay); {
		view := world.View()
		changed := changedNodes(view, after)
		for node := range changed {
			if err := c.conn.Publish(protocol.WakeSubject(node.ID()), nil); err != nil {
				c.logger.Debug("cannot wake an agent: it gets its changed assignments with its next "+
					"heartbeat", "node", node, "error", err)
			}
		}
		after = view.Position
		if len(changed) > 0 && !eventlog.Sleep(ctx, notifyPause) {
			return
		}
	}
}

// waitForChange waits until the world is beyond a position or timeout has passed, and then for
// delay, so that further changes are handled together. A timeout of 0 means no limit. It returns
// false when ctx is done.
func waitForChange(
	ctx context.Context, world *projections.World, after uint64, timeout, delay time.Duration,
) bool {
	var expired <-chan time.Time
	if timeout > 0 {
		timer := time.NewTimer(timeout)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-world.Changed(after):
	case <-expired:
	case <-ctx.Done():
		return false
	}
	return eventlog.Sleep(ctx, delay)
}

// changedNodes returns the nodes whose assignments may have changed since position.
func changedNodes(v *projections.View, position uint64) map[domain.Name]bool {
	nodes := map[domain.Name]bool{}
	for row := range v.Nodes.All() {
		if row.Version > position {
			nodes[row.Name] = true
		}
	}
	for row := range projections.UnfinishedJobs(v) {
		if row.Version > position && row.State.Life().Active() {
			nodes[row.State.Life().Nodes[0]] = true
		}
	}
	for row := range v.Deployments.All() {
		if row.Version > position {
			for _, r := range row.State.Replicas {
				nodes[r.Node] = true
			}
		}
	}
	for row := range v.DeployedModels.All() {
		if deployment, ok := v.Deployments.Get(domain.Name(row.State.Deployment)); ok && row.Version > position {
			for _, r := range deployment.State.Replicas {
				nodes[r.Node] = true
			}
		}
	}
	return nodes
}

// purge purges deleted jobs that have stopped, until ctx is done. The reconciler later deletes
// their files.
func (c *Coordinator) purge(ctx context.Context) {
	world := c.recorder.world
	for after := uint64(0); ; {
		view := world.View()
		for row := range projections.UnfinishedJobs(view) {
			if row.State.Life().State != domain.JobCleaningUpState {
				continue
			}
			if err := c.purgeJob(ctx, row.Name); err != nil && ctx.Err() == nil {
				c.logger.Warn("cannot purge a deleted job: trying again", "job", row.Name, "error", err)
			}
		}
		after = view.Position
		if !waitForChange(ctx, world, after, purgeRetry, purgeDelay) {
			return
		}
	}
}

// purgeActor is the actor of purges in the log. It is part of stored events, so it never changes.
const purgeActor = "desk"

func (c *Coordinator) purgeJob(ctx context.Context, name domain.Name) error {
	ctx, cancel := context.WithTimeout(ctx, purgeRetry)
	defer cancel()
	r := c.recorder
	request := eventlog.Request{Time: r.now(), Actor: purgeActor}
	result, err := eventlog.Do(ctx, r.log, r.world, request, domain.IntendJob(name, domain.PurgeJob{}))
	if err != nil {
		return err
	}
	r.world.Live().Forget(name)
	return r.world.WaitFor(ctx, result.Position())
}

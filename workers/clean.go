package workers

import (
	"context"
	"time"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/workers/wire"
)

const (
	gather     = 50 * time.Millisecond // changes that come together are looked at together
	cleanAgain = time.Minute           // what could not be removed is tried again
	sweepAgain = time.Hour             // what was left behind is looked for
)

// nudge makes the agents beat for whom something has changed, until the desk closes.
func (d *Desk) nudge() {
	for after := d.World.Position(); d.changed(after, 0); {
		view := d.World.View()
		for node := range touched(view, after) {
			if err := d.Conn.Publish(wire.NudgeSubject(node.ID()), nil); err != nil {
				d.log.Debug("a node is not nudged; it beats soon anyway", "node", node, "error", err)
			}
		}
		after = view.Position
	}
}

// changed waits until the world is beyond a position, and a moment more; false
// when the desk closes. It also returns when at most so much time has passed,
// if that is not 0.
func (d *Desk) changed(after uint64, most time.Duration) bool {
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

// clean removes the files of deleted jobs, and then the jobs; the keys of
// deployments that are due to be purged, and then the deployments; and what
// servers that died have left of requests.
func (d *Desk) clean() {
	again := map[domain.Name]time.Time{} // of those that could not be removed
	try := func(name domain.Name, remove func() error) {
		if d.Now().Before(again[name]) {
			return
		}
		delete(again, name)
		if err := remove(); err != nil {
			again[name] = d.Now().Add(cleanAgain)
			d.log.Warn("what belongs to something deleted could not be removed yet", "name", name, "error", err)
		}
	}
	swept := time.Time{}
	for after := uint64(0); ; {
		if now := d.Now(); now.Sub(swept) >= sweepAgain {
			swept = now
			d.sweep(now.Add(-blobs.TransientTime))
		}
		view := d.World.View()
		for j := range jobs(view) {
			if j.Life.State == domain.JobCleaningState {
				try(j.Name, func() error { return d.purge(j) })
			}
		}
		for row := range view.Deployments.All() {
			if row.State.Sealed() && row.State.Due(d.Now()) {
				try(row.Name, func() error { return d.purgeDeployment(row) })
			}
		}
		after = view.Position
		if !d.changed(after, cleanAgain) {
			return
		}
	}
}

// sweep removes what requests stored before a time.
func (d *Desk) sweep(before time.Time) {
	ctx, cancel := context.WithTimeout(d.ctx, cleanAgain)
	defer cancel()
	if err := d.Blobs.Sweep(ctx, blobs.Transient, before); err != nil && d.ctx.Err() == nil {
		d.log.Warn("files of old requests could not be removed yet", "error", err)
	}
}

// purge removes a job and its files: checkpoints, metrics, and results that no
// model came of. The model that did is its own.
func (d *Desk) purge(j job) error {
	ctx, cancel := context.WithTimeout(d.ctx, cleanAgain)
	defer cancel()
	folders := []string{blobs.JobFolder(j.Name)}
	for attempt := range j.Life.Attempt {
		if folder := resultFolder(j, attempt+1); folder != j.Life.Results.Folder {
			folders = append(folders, folder)
		}
	}
	for _, folder := range folders {
		if err := d.Blobs.DeleteFolder(ctx, folder); err != nil {
			return err
		}
	}
	result, err := eventlog.Do(ctx, d.Log, d.World, eventlog.Request{Time: d.Now(), Actor: "desk"}, domain.IntendJob(j.Name, domain.PurgeJob{}))
	if err != nil {
		return err
	}
	d.World.Pulse().Forget(j.Name)
	return d.World.WaitFor(ctx, result.Position)
}

// purgeDeployment shreds what a deployment kept sealed, and then forgets it.
// Nobody can undelete it any more: its purgeTime has come.
func (d *Desk) purgeDeployment(row *projections.Row[domain.Deployment]) error {
	ctx, cancel := context.WithTimeout(d.ctx, cleanAgain)
	defer cancel()
	for _, key := range row.State.DirectRouteAPIKeys {
		if d.Shred == nil {
			break
		}
		if err := d.Shred(ctx, key.KeyID); err != nil {
			return err
		}
	}
	result, err := eventlog.Do(ctx, d.Log, d.World, eventlog.Request{Time: d.Now(), Actor: "desk"},
		domain.Intend(domain.Deployments, row.Name, domain.PurgeDeployment{}))
	if err != nil {
		return err
	}
	return d.World.WaitFor(ctx, result.Position)
}

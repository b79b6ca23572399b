package coordinator

import (
	"cmp"
	"slices"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/live"
	"anneal/workers/protocol"
)

// recordStatus records the live status in a heartbeat: the state of the node, the progress of its
// attempts and the load of its replicas. Heartbeats are handled concurrently. If a newer heartbeat
// of the node was recorded before, only the rows of metrics are added. Rows that would leave a gap
// in the live status are ignored; the agent sends them again, from the acknowledged step on.
func (h *heartbeats) recordStatus(node string, heartbeat protocol.Heartbeat) {
	status := &h.sessions.get(node).status
	status.mu.Lock()
	defer status.mu.Unlock()
	overtaken := h.sessions.get(node).overtaken(heartbeat)
	now, observed, view := h.now(), h.world.Live(), h.world.View()
	observed.Heartbeat(nodeName(node), now)
	if !overtaken {
		observed.SetDevices(nodeName(node), devicesOf(heartbeat), now)
	}
	for _, a := range heartbeat.Attempts {
		j, ok := jobNamed(view, a.Job)
		if a.Phase == protocol.Lost || !ok || !j.CreateTime.Equal(a.CreateTime) ||
			!leadBy(j, nodeName(node), a.Attempt) {
			continue
		}
		progress := live.Progress{Made: j.CreateTime, Attempt: a.Attempt, Step: a.Step, Steps: a.Steps,
			Time: now}
		acked := ackedStep(view, j)
		if last, ok := j.progress(view); !ok || last.Attempt != a.Attempt {
			first := progress
			first.Step = acked // so that the rows of earlier attempts from this step on are removed
			observed.Report(a.Job, first)
		}
		rows, gap := make([]live.MetricRow, 0, len(a.Rows)), a.Acked > acked
		for _, row := range a.Rows[:min(len(a.Rows), protocol.MaxRows)] {
			if !gap {
				rows = append(rows, metricRow(row))
			}
			progress.Epoch, progress.LearningRate, progress.Tokens = row.Epoch, row.LearningRate, row.Tokens
		}
		observed.Report(a.Job, progress, rows...)
	}
	for _, r := range heartbeat.Replicas {
		if overtaken || !hasReplica(view, nodeName(node), r) {
			continue
		}
		observed.Load(r.Deployment, r.Replica, live.ReplicaLoad{
			Node: nodeName(node), Ready: r.State == domain.ReplicaReady,
			Active: r.Load.Active, Queued: r.Load.Queued, Slots: r.Load.Slots,
			RequestsPerSecond: r.Load.RequestsPerSecond, CompletedPerSecond: r.Load.CompletedPerSecond,
			PromptTokensPerSecond: r.Load.PromptTokensPerSecond,
			TokensPerSecond:       r.Load.TokensPerSecond, Time: now, Addons: addonStates(r),
			Unloaded: unloadedAddons(r), AddonLoadTime: clamp(r.Load.AddonLoadTime, 0, time.Hour),
			Engine: engineLoad(r.Load.Engine),
		})
	}
}

// devicesOf returns the devices in a heartbeat, but at most protocol.MaxDevices.
func devicesOf(heartbeat protocol.Heartbeat) (devices []live.Device) {
	for _, d := range heartbeat.Devices[:min(len(heartbeat.Devices), protocol.MaxDevices)] {
		d.Type, d.Allocation = truncate(d.Type), truncate(d.Allocation)
		d.Sharing = d.Sharing[:min(len(d.Sharing), domain.WholeDevice)]
		for i, id := range d.Sharing {
			d.Sharing[i] = truncate(id)
		}
		if !slices.Contains(domain.DeviceHealth, d.Health) {
			d.Health = domain.DeviceUnknown
		}
		devices = append(devices, live.Device(d))
	}
	return devices
}

func metricRow(m engines.Metrics) live.MetricRow {
	return live.MetricRow{Step: m.Step, Steps: m.Steps, Epoch: m.Epoch, Time: m.Time,
		LearningRate: m.LearningRate, Tokens: m.Tokens, Values: m.Values}
}

// addonStates returns the states of a replica's addons by addon ID, but at most 2*domain.MaxAddons,
// because addons that are being unloaded are listed too.
func addonStates(r protocol.Replica) map[string]string {
	states := map[string]string{}
	for _, a := range r.Addons[:min(len(r.Addons), 2*domain.MaxAddons)] {
		states[a.ID] = a.State
	}
	return states
}

// unloadedAddons returns the loaded addons that the engine of a replica has evicted, by addon ID. The
// value is true if requests wait until the engine has loaded the addon again.
func unloadedAddons(r protocol.Replica) map[string]bool {
	var unloaded map[string]bool
	for _, a := range r.Addons[:min(len(r.Addons), 2*domain.MaxAddons)] {
		if a.State != protocol.AddonLoaded || a.Residency == protocol.AddonResident {
			continue
		}
		if unloaded == nil {
			unloaded = map[string]bool{}
		}
		unloaded[a.ID] = a.Residency == protocol.AddonQueued
	}
	return unloaded
}

// maxTokens is the maximum number of tokens in a report of an engine.
const maxTokens = 1 << 40

// engineLoad returns the load that an engine reports; that without any known number if it reports none.
func engineLoad(l *engines.ModelLoad) live.EngineLoad {
	if l == nil {
		none := engines.NoLoad()
		l = &none
	}
	return live.EngineLoad{PendingTokens: clamp(l.PendingTokens, -1, maxTokens), Running: clamp(l.Running, -1, maxTokens),
		Waiting: clamp(l.Waiting, -1, maxTokens), CacheTokens: clamp(l.CacheTokens, -1, maxTokens),
		CacheUsed: clamp(l.CacheUsed, -1, maxTokens), Age: clamp(l.Age, 0, time.Minute)}
}

func clamp[T cmp.Ordered](value, low, high T) T { return max(low, min(value, high)) }

// leadBy reports whether attempt is the current attempt of the job and the node leads it: the node
// is the first or only one of the attempt. Only the leader reports progress and results.
func leadBy(j job, node domain.Name, attempt int) bool {
	return attempt == j.Life.Attempt && j.Life.Active() && j.Life.Nodes[0] == node
}

// allocations returns the allocations of a node.
func allocations(v *projections.View, node string) []domain.Allocation {
	row, ok := v.Nodes.Get(nodeName(node))
	if !ok {
		return nil
	}
	return row.State.Allocated()
}

// replicaOf returns the replica to which an allocation on the node belongs; false when the replica
// does not exist or is on another node.
func replicaOf(v *projections.View, node domain.Name, a domain.Allocation) (domain.Replica, bool) {
	row, ok := v.Deployments.Get(a.For)
	if !ok || a.Replica == "" {
		return domain.Replica{}, false
	}
	r, ok := row.State.Replicas[a.Replica]
	return r, ok && r.Node == node
}

// hasReplica reports whether the replica r in a heartbeat exists and is on the node.
func hasReplica(v *projections.View, node domain.Name, r protocol.Replica) bool {
	row, ok := v.Deployments.Get(r.Deployment)
	return ok && row.CreateTime.Equal(r.CreateTime) && row.State.Replicas[r.Replica].Node == node
}

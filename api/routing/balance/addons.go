package balance

import "time"

const (
	addonLoads    = 2               // an addon that is not resident counts as this many times its load time
	addonSendKept = 5 * time.Second // after this time, reports have the addons that own requests have loaded
	maxAddonSends = 4096            // maximum number of addons of a replica that own requests have loaded since
)

// addonDelay returns the time by which a request is delayed because its addon is not resident on a
// replica, according to the last report of the replica and to the requests that were sent since
// then: twice the load time, because a load also evicts another addon, or the rest of a load that
// an earlier request has begun.
func (r *replicaState) addonDelay(now time.Duration, addon string, c *Candidate) time.Duration {
	if c.AddonLoad <= 0 {
		return 0
	}
	if begun, ok := r.loads[addon]; ok && now-begun <= addonSendKept {
		return max(0, begun+c.AddonLoad-now)
	}
	if c.AddonQueued {
		return c.AddonLoad
	}
	return addonLoads * c.AddonLoad
}

// loadAddon records that a request makes the replica load an addon.
func (r *replicaState) loadAddon(now time.Duration, addon string) {
	if begun, ok := r.loads[addon]; ok && now-begun <= addonSendKept || len(r.loads) >= maxAddonSends {
		return
	}
	if r.loads == nil {
		r.loads = map[string]time.Duration{}
	}
	r.loads[addon] = now
}

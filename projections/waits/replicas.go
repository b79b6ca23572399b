package waits

import (
	"math/bits"

	"anneal/domain"
)

// MinReplicaWait is the number of seconds from which on a deployment that lacks replicas counts as one
// that has waited for capacity. Replicas for which there is capacity are placed sooner.
const MinReplicaWait = 5

// The levels of the keys of replicas, which follow those of jobs.
const (
	replicasBySize = 6
	allReplicas    = 7
)

// keysOfReplicas returns the keys of the buckets of replicas that use units accelerators, 0 if none,
// the finest bucket first. below says whether the deployment has fewer replicas than its minimum.
func keysOfReplicas(below bool, units int) []uint64 {
	s := domain.QueueSituation{Over: below}
	all := key(allReplicas, s)
	s.Size = bits.Len64(uint64(units))
	return []uint64{key(replicasBySize, s), all}
}

// ObserveReplica records for how many seconds a deployment lacked replicas.
func (h *History) ObserveReplica(below bool, units int, wait int64) {
	if wait >= MinReplicaWait {
		h.add(keysOfReplicas(below, units), wait)
	}
}

// EstimateReplica is EstimateAfter for a deployment that lacks replicas for age seconds.
func (h *History) EstimateReplica(below bool, units int, age int64) (estimate domain.WaitEstimate, longer int) {
	return h.estimateAfter(keysOfReplicas(below, units), age)
}

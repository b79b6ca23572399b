package queue

import (
	"cmp"
	"math/bits"
	"slices"

	"anneal/domain"
)

// A Place is the position of a waiting job or replica among those of its accelerator type.
type Place struct {
	Position int   // position in the order of start, from 1
	Length   int   // number of waiting jobs and replicas of this accelerator type
	Ahead    int64 // sum of the units (accelerators or CPU cores) of the waiting ones before this one
}

// Places returns the places of all waiting jobs and replicas, by ID. It sorts all of them, so call
// it once for several jobs.
func (q *Queue) Places(now int64) map[string]Place {
	q.now = now
	q.updateLate()
	types := map[string][]order{}
	for _, g := range q.groups {
		for _, e := range g.heap {
			types[e.Type] = append(types[e.Type], orderOf(q, e))
		}
	}
	places := make(map[string]Place, len(q.jobs))
	for _, waiting := range types {
		slices.SortFunc(waiting, order.compare)
		if q.priorities {
			prefer(q, waiting)
		}
		ahead := int64(0)
		for i, o := range waiting {
			places[o.id] = Place{i + 1, len(waiting), ahead}
			ahead += o.size
		}
	}
	return places
}

// An order holds the values of a waiting job or replica by which compare orders them, and its size.
type order struct {
	promised, last bool
	key            int64
	id             string
	size           int64
	account        string
	priority       int64
	replica        bool
}

// prefer reorders the jobs of each account by their priorities: see preferred. The positions that
// the jobs of an account have in sorted stay the same.
func prefer(q *Queue, sorted []order) {
	places := map[string][]int{}
	for i, o := range sorted {
		if !o.replica {
			places[o.account] = append(places[o.account], i)
		}
	}
	for _, at := range places {
		mine := make([]order, len(at))
		for i, place := range at {
			mine[i] = sorted[place]
			mine[i].key -= q.rules.priorityShift(mine[i].priority)
		}
		slices.SortFunc(mine, order.compare)
		for i, place := range at {
			sorted[place] = mine[i]
		}
	}
}

// orderOf returns the order of a waiting job or replica. Promised jobs and replicas within a
// minimum come first, as in startPromised.
func orderOf(q *Queue, e *entry) order {
	o := order{promised: e.Promised || e.Role == Minimum, last: e.Last, key: e.deadline, id: e.ID,
		size: q.list[e.shape].size, account: e.Account, priority: e.Priority, replica: e.Role != Training}
	if !o.promised {
		o.key += q.extra(e.account, e.Type) - q.boost(e.account, e.Type, e.group.fresh)
	}
	return o
}

func (a order) compare(b order) int {
	return cmp.Or(rank(b.promised)-rank(a.promised), rank(a.last)-rank(b.last), cmp.Compare(a.key, b.key),
		cmp.Compare(a.id, b.id))
}

// Situation returns the situation of a waiting job, from which its wait is estimated; false if the
// job does not wait. ahead is the sum of the units of the jobs before it, and started is the number
// of units of its type that were used by the jobs started in the last hour.
func (q *Queue) Situation(id string, now, ahead, started int64) (domain.QueueSituation, bool) {
	e := q.jobs[id]
	if e == nil || e.group == nil {
		return domain.QueueSituation{}, false
	}
	return domain.QueueSituation{Size: bits.Len64(uint64(q.list[e.shape].size)), Over: q.isOverShare(e.account, e.Type),
		Load:   bits.Len64(uint64(8 * ahead / max(1, started))),
		Length: bits.Len64(uint64(len(e.group.heap))),
		Age:    bits.Len64(uint64(max(0, now-e.group.heap[0].Arrival) / 60))}, true
}

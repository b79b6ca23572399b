package queue

// Ahead returns how many units are before a waiting job of the same type in the order of the queue;
// false if the job does not wait. Places sorts all jobs, which is too slow for each arrival of a
// simulation.
func (q *Queue) Ahead(id string, now int64) (units int64, ok bool) {
	e := q.jobs[id]
	if e == nil || e.group == nil {
		return 0, false
	}
	q.now = now
	q.updateLate()
	mine := orderOf(q, e)
	for _, g := range q.groups {
		if q.list[g.shape].kind != e.Type {
			continue
		}
		for _, other := range g.heap {
			if other != e && orderOf(q, other).compare(mine) < 0 {
				units += q.list[g.shape].size
			}
		}
	}
	return units, true
}

package replay

import (
	"container/heap"
	"time"

	"anneal/domain"
)

// An action is what happens when a timer fires.
type action int

const (
	ends    action = iota // the attempt has done the work of its segment, and ends
	crashes               // the attempt fails, as a recorded one did
	saves                 // the attempt records a checkpoint
	stops                 // the attempt has saved a checkpoint and stops, as requested
	serves                // the replica becomes ready, and serves requests
	purges                // the job, which has ended, is removed, so that plans take less time
)

// A timer is an action on an attempt of a job, or on a replica, at a later simulated time.
type timer struct {
	at      time.Time
	number  int // sequence number, which orders timers with the same time
	job     domain.Name
	attempt int
	replica string
	node    domain.Name
	does    action
	every   time.Duration // interval of the checkpoints; only for the action saves
}

// timers is a heap of timers, ordered by time.
type timers struct {
	list   []timer
	number int
}

func (t *timers) Len() int { return len(t.list) }

func (t *timers) Less(i, j int) bool {
	a, b := t.list[i], t.list[j]
	return a.at.Before(b.at) || a.at.Equal(b.at) && a.number < b.number
}

func (t *timers) Swap(i, j int) { t.list[i], t.list[j] = t.list[j], t.list[i] }

func (t *timers) Push(x any) { t.list = append(t.list, x.(timer)) }

func (t *timers) Pop() any {
	last := t.list[len(t.list)-1]
	t.list = t.list[:len(t.list)-1]
	return last
}

// first returns the time of the next timer; false if there is none.
func (t *timers) first() (time.Time, bool) {
	if len(t.list) == 0 {
		return time.Time{}, false
	}
	return t.list[0].at, true
}

// at adds a timer that fires at the given time.
func (s *simulation) at(fireTime time.Time, t timer) {
	s.timers.number++
	t.at, t.number = fireTime, s.timers.number
	heap.Push(&s.timers, t)
}

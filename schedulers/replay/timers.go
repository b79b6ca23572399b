package replay

import (
	"container/heap"
	"time"

	"anneal/domain"
)

// What a timer does.
type action int

const (
	ends    action = iota // the work of an attempt is done
	crashes               // the attempt fails
	saves                 // the attempt records a checkpoint
	stops                 // the attempt has saved a checkpoint and stops, as it was told
	serves                // the replica is ready
	purges                // the ended job is removed, so that plans do not look at it
)

// A timer is something that happens later, to an attempt of a job or to a replica.
type timer struct {
	at      time.Time
	number  int // orders timers of one time
	job     domain.Name
	attempt int
	replica string
	node    domain.Name
	does    action
	every   time.Duration // of saves
}

// timers is a heap.
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

// first returns the time of the next timer; false without one.
func (t *timers) first() (time.Time, bool) {
	if len(t.list) == 0 {
		return time.Time{}, false
	}
	return t.list[0].at, true
}

// at adds a timer.
func (s *simulation) at(at time.Time, t timer) {
	s.timers.number++
	t.at, t.number = at, s.timers.number
	heap.Push(&s.timers, t)
}

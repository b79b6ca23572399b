package domain

import "time"

// A Deletion is the reservation of a delete: the part that resources have in
// common that others can work with. A delete takes two events. The first requests
// for it; the caller then looks at what works with the resource, in a world
// that holds all that was recorded before. The second deletes it, or abandons
// the deletion. So the order of the log decides between a delete and a use
// that race: a use recorded before the request is seen by the caller, and
// the delete is refused; one that comes later is refused or fails.
//
//	live --RequestDeletion--> live, no new use begins for DeletionWithin
//	live, requested --AbandonDeletion--> live
//	live, requested --DeleteDataset, …--> as the kind says
type Deletion struct {
	DeletionTime *time.Time `json:"deletionTime,omitempty"` // when it was requested
}

// DeletionWithin is how long a request keeps new uses away. The caller deletes
// or abandons well within it; a server that stopped in between leaves nothing
// behind that lasts.
const DeletionWithin = 30 * time.Second

// renewWithin is how old a request may be for another delete to share it.
const renewWithin = 10 * time.Second

// Requested reports whether a deletion request is in effect at now. A request
// expires after DeletionWithin.
func (d Deletion) Requested(now time.Time) bool {
	return d.DeletionTime != nil && now.Before(d.DeletionTime.Add(DeletionWithin))
}

var deletions = NewKind("deletions", map[string]Event[Deletion]{
	"deletionRequested.v1": DeletionRequested{},
	"deletionAbandoned.v1": DeletionAbandoned{},
})

type (
	DeletionRequested struct {
		Time time.Time `json:"time"`
	}
	DeletionAbandoned struct {
		Reason string `json:"reason"`
	}
)

func (e DeletionRequested) Evolve(d *Deletion) { d.DeletionTime = &e.Time }
func (DeletionAbandoned) Evolve(d *Deletion)   { d.DeletionTime = nil }

// usable adds the reservation of deletes to a kind that others work with.
func usable[S State](k *Kind[S], prefix string, part func(*S) *Deletion) *Kind[S] {
	k.deletion = part
	return Extend(k, prefix, deletions, part)
}

// Usable reports whether other resources can work with those of the kind, so that
// a delete must be requested first.
func (k *Kind[S]) Usable() bool { return k.deletion != nil }

// Reserved is a state with its deletion requested.
func (k *Kind[S]) Reserved(s S, now time.Time) S {
	k.deletion(&s).DeletionTime = &now
	return s
}

// RequestDeletion reserves the delete of a resource of a usable kind.
func RequestDeletion[S State](k *Kind[S]) Command[S] { return requestDeletion[S]{k.deletion} }

// AbandonDeletion gives up a delete that was requested, since something works
// with the resource.
func AbandonDeletion[S State](k *Kind[S], reason string) Command[S] {
	return abandonDeletion[S]{reason, k.deletion}
}

type requestDeletion[S State] struct{ part func(*S) *Deletion }

func (c requestDeletion[S]) Decide(s S, now time.Time) (Event[S], error) {
	switch {
	case !s.Exists():
		return nil, gone("resource")
	case c.part(&s).Requested(now.Add(DeletionWithin - renewWithin)):
		return nil, nil
	}
	return lifted[S, Deletion]{DeletionRequested{now}, c.part}, nil
}

type abandonDeletion[S State] struct {
	Reason string
	part   func(*S) *Deletion
}

func (c abandonDeletion[S]) Decide(s S, _ time.Time) (Event[S], error) {
	if !s.Exists() || c.part(&s).DeletionTime == nil {
		return nil, nil
	}
	return lifted[S, Deletion]{DeletionAbandoned{c.Reason}, c.part}, nil
}

// ReasonNotRequested is the error reason when a resource is deleted without a
// pending deletion request, for example because the request was abandoned.
const ReasonNotRequested = "DELETION_NOT_REQUESTED"

// mayDelete returns an error unless a deletion request is in effect: a use may
// have begun since one expired.
func (d Deletion) mayDelete(now time.Time) error {
	if !d.Requested(now) {
		return precondition(ReasonNotRequested, "no deletion request is pending, because it expired or was abandoned: try again")
	}
	return nil
}

package domain

import "time"

// A Deletion is the state of a two-phase delete, shared by all kinds that other resources can refer
// to. The first event requests the deletion; the caller then looks for references to the resource
// in a world that holds every event recorded before the request. The second event deletes the
// resource or abandons the deletion. So the order of the log decides a race between a delete and a
// new reference. If the reference is recorded before the request, the delete is refused. If it is
// recorded after the request, the reference is refused, or the resource that uses it fails.
//
//	live --RequestDeletion--> live, no new references for DeletionWithin
//	live, requested --AbandonDeletion--> live
//	live, requested --DeleteDataset, …--> depends on the kind
type Deletion struct {
	DeletionTime *time.Time `json:"deletionTime,omitempty"` // when the deletion was requested; nil without a request
}

// DeletionWithin is how long a deletion request blocks new references. The server that recorded the
// request deletes the resource or abandons the deletion within this time. If it stops before that,
// the request expires.
const DeletionWithin = 30 * time.Second

// renewWithin is the maximum age of a deletion request that a second delete of the resource may
// rely on. A delete that finds an older request records another one.
const renewWithin = 10 * time.Second

// Requested reports whether a deletion request is in effect at now. A request expires after
// DeletionWithin.
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

// referenceable adds two-phase deletes to a kind that other resources can refer to, and returns the
// kind. prefix begins the stored names of the deletion events; deletion returns the Deletion in a
// state of the kind.
func referenceable[S State](k *Kind[S], prefix string, deletion func(*S) *Deletion) *Kind[S] {
	k.deletion = deletion
	return Extend(k, prefix, deletions, deletion)
}

// Referenceable reports whether other resources can refer to resources of the kind, so that a
// deletion must be requested first.
func (k *Kind[S]) Referenceable() bool { return k.deletion != nil }

// WithDeletion returns the state s with a deletion requested at now. The kind must be
// referenceable.
func (k *Kind[S]) WithDeletion(s S, now time.Time) S {
	k.deletion(&s).DeletionTime = &now
	return s
}

// RequestDeletion returns the command that requests the deletion of a resource of a referenceable
// kind.
func RequestDeletion[S State](k *Kind[S]) Command[S] { return requestDeletion[S]{k.deletion} }

// AbandonDeletion returns the command that withdraws a deletion request because a reference to the
// resource was found.
func AbandonDeletion[S State](k *Kind[S], reason string) Command[S] {
	return abandonDeletion[S]{reason, k.deletion}
}

type requestDeletion[S State] struct{ deletion func(*S) *Deletion }

func (c requestDeletion[S]) Decide(s S, now time.Time) (Event[S], error) {
	switch {
	case !s.Exists():
		return nil, notFound("resource")
	case c.deletion(&s).Requested(now.Add(DeletionWithin - renewWithin)):
		return nil, nil
	}
	return lifted[S, Deletion]{DeletionRequested{now}, c.deletion}, nil
}

type abandonDeletion[S State] struct {
	Reason   string
	deletion func(*S) *Deletion
}

func (c abandonDeletion[S]) Decide(s S, _ time.Time) (Event[S], error) {
	if !s.Exists() || c.deletion(&s).DeletionTime == nil {
		return nil, nil
	}
	return lifted[S, Deletion]{DeletionAbandoned{c.Reason}, c.deletion}, nil
}

// ReasonNotRequested is the error reason when a resource is deleted without a pending deletion
// request, for example because the request was abandoned.
const ReasonNotRequested = "DELETION_NOT_REQUESTED"

// mayDelete returns an error unless a deletion request is in effect at now. Once a request has
// expired, new references to the resource may have been recorded.
func (d Deletion) mayDelete(now time.Time) error {
	if !d.Requested(now) {
		return precondition(ReasonNotRequested,
			"the deletion request expired or was abandoned before the resource was deleted: try again")
	}
	return nil
}

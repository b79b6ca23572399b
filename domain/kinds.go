package domain

import (
	"iter"
	"reflect"
	"time"
)

// Kinds lists all kinds of resources. The world holds a table of each; the event feed, the
// catalogue of stored events, the reconciler and the documents range over them. To add a kind, add
// its file in this package and its entry here; see CONTRIBUTING.md.
var Kinds = []AnyKind{
	Accounts,
	APIKeys,
	Secrets,
	Models,
	Datasets,
	Evaluators,
	SupervisedJobs,
	DPOJobs,
	ReinforcementJobs,
	TrainerJobs,
	TrainingSessions,
	TrainingRuns,
	DeploymentShapes,
	Deployments,
	DeployedModels,
	Nodes,
	Quotas,
	BatchFiles,
	Batches,
	Subscriptions,
	UsageRollups,
}

// Collections returns the collections of all kinds.
func Collections() (all []string) {
	for _, k := range Kinds {
		all = append(all, k.CollectionID())
	}
	return all
}

// KindOf returns the kind of a collection; nil when there is none.
func KindOf(collection string) AnyKind {
	for _, k := range Kinds {
		if k.CollectionID() == collection {
			return k
		}
	}
	return nil
}

// AnyKind is the interface of *Kind[S] for code that works with kinds of every state S.
type AnyKind interface {
	// CollectionID returns the collection, as in resource names.
	CollectionID() string
	// StateType returns the type S of the kind's states.
	StateType() reflect.Type
	// EventTypes yields the stored event names in order, with the Go type of each event.
	EventTypes() iter.Seq2[string, reflect.Type]
	// Referenceable reports whether other resources can refer to resources of the kind.
	Referenceable() bool
	// NewRow returns a *Row[S] with the given name and an empty state.
	NewRow(Name) AnyRow
	// DecodeEvent returns the event of a record, for AnyRow.Apply.
	DecodeEvent(Record) (any, error)
	// EncodeEvent returns the record of an event that DecodeEvent returned.
	EncodeEvent(event any) (Record, error)
	// FoldRecord returns the state, an S, after the record's event. state is an S, or nil if the
	// resource did not exist before the event.
	FoldRecord(state any, r Record) (any, error)
	// IntendJob returns the intent that addresses a command on JobLife to a job. Intent.Decide
	// fails when the kind is not a kind of job.
	IntendJob(Name, Command[JobLife]) Intent
}

// CollectionID implements AnyKind.
func (k *Kind[S]) CollectionID() string { return k.Collection }

// StateType implements AnyKind.
func (k *Kind[S]) StateType() reflect.Type { return reflect.TypeFor[S]() }

// NewRow implements AnyKind.
func (k *Kind[S]) NewRow(name Name) AnyRow { return &Row[S]{Name: name} }

// DecodeEvent implements AnyKind.
func (k *Kind[S]) DecodeEvent(r Record) (any, error) { return k.Decode(r) }

// EncodeEvent implements AnyKind.
func (k *Kind[S]) EncodeEvent(event any) (Record, error) { return k.Encode(event.(Event[S])) }

// FoldRecord implements AnyKind.
func (k *Kind[S]) FoldRecord(state any, r Record) (any, error) {
	next, _ := state.(S)
	err := k.Fold(&next, r)
	return next, err
}

// A Row is the current state of one resource, with the position of its last event. Rows of a view
// never change. Their states may share maps and slices, so do not modify the maps and slices of a
// state.
type Row[S any] struct {
	Name       Name
	State      S
	CreateTime time.Time // time of the event that created the resource, UTC
	UpdateTime time.Time // time of the resource's last event, UTC
	Version    uint64    // position of the resource's last event

	CreateVersion uint64 // position of the event that created the resource

	// ReserveVersion is the position of the event with which a job reserved the name of its output
	// model; 0 while the resource reserves none. See ReservedOutput.
	ReserveVersion uint64

	// CreateEvent is the ID of the event that created the resource. Blob prefixes contain
	// CreateEvent, because it is unique even when the name of the resource is reused.
	CreateEvent string
}

// AnyRow is the interface of *Row[S] for code that works with rows of every state S.
type AnyRow interface {
	// Key returns the name of the resource.
	Key() Name
	// Head returns a copy of all fields of the row but its state.
	Head() Row[struct{}]
	// Versions returns CreateVersion and Version.
	Versions() (created, last uint64)
	// Value returns the state, an S.
	Value() any
	// Pointer returns the address of the state, an *S. Do not change what it points to.
	Pointer() any
	// Clone returns a copy that Apply may change.
	Clone() AnyRow
	// Apply evolves the state by an event from DecodeEvent and reports whether the resource exists
	// after the event. position, id and eventTime are the log position, the ID and the time of the
	// event.
	Apply(event any, position uint64, id string, eventTime time.Time) (exists bool)
	// SetHead sets all fields of the row but its state.
	SetHead(head Row[struct{}])
}

// Key implements AnyRow.
func (r *Row[S]) Key() Name { return r.Name }

// Head implements AnyRow.
func (r *Row[S]) Head() Row[struct{}] {
	return WithState(*r, struct{}{})
}

// Versions implements AnyRow.
func (r *Row[S]) Versions() (created, last uint64) { return r.CreateVersion, r.Version }

// Value implements AnyRow.
func (r *Row[S]) Value() any { return r.State }

// Pointer implements AnyRow.
func (r *Row[S]) Pointer() any { return &r.State }

// Clone implements AnyRow.
func (r *Row[S]) Clone() AnyRow {
	clone := *r
	return &clone
}

// Apply implements AnyRow. The row stays unchanged when the event panics.
func (r *Row[S]) Apply(event any, position uint64, id string, at time.Time) (exists bool) {
	before, applied := *r, false
	defer func() {
		if !applied {
			*r = before
		}
	}()
	existed, reserved := r.exists(), r.reservedOutput()
	event.(Event[S]).Evolve(&r.State)
	r.Version, r.UpdateTime = position, at
	exists = r.exists()
	switch output := r.reservedOutput(); output {
	case reserved:
	case "":
		r.ReserveVersion = 0
	default:
		r.ReserveVersion = position
	}
	if exists && !existed {
		r.CreateTime, r.CreateEvent, r.CreateVersion = at, id, position
	}
	applied = true
	return exists
}

func (r *Row[S]) exists() bool {
	state, ok := any(&r.State).(State)
	return ok && state.Exists()
}

// reservedOutput returns the name of the model that the resource reserves; "" when the resource is
// not a job or reserves none.
func (r *Row[S]) reservedOutput() Name {
	if job, ok := any(&r.State).(Job); ok {
		return ReservedOutput(r.Name, job)
	}
	return ""
}

// SetHead implements AnyRow.
func (r *Row[S]) SetHead(head Row[struct{}]) { *r = WithState(head, r.State) }

// WithState returns a copy of the row with another state, which can be of another type.
func WithState[S, T any](r Row[S], state T) Row[T] {
	return Row[T]{Name: r.Name, State: state, CreateTime: r.CreateTime, UpdateTime: r.UpdateTime,
		Version: r.Version, CreateVersion: r.CreateVersion, ReserveVersion: r.ReserveVersion, CreateEvent: r.CreateEvent}
}

package domain

import (
	"encoding/json"
	"iter"
	"reflect"
	"time"
)

// Kinds are all kinds of resources. The world holds a table of each, and the event feed, the
// catalogue of stored events, the reconciler and the documents range over them. A kind is added by
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
	DeploymentShapes,
	Deployments,
	DeployedModels,
	Nodes,
	Quotas,
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

// AnyKind is a *Kind[S] for code that serves every S.
type AnyKind interface {
	// CollectionID returns the collection, as in resource names.
	CollectionID() string
	// StateType returns S.
	StateType() reflect.Type
	// EventTypes yields the stored event names in order, with the Go type of each event.
	EventTypes() iter.Seq2[string, reflect.Type]
	// Usable reports whether other resources can use those of the kind.
	Usable() bool
	// NewRow returns a *Row[S] without a state.
	NewRow(Name) AnyRow
	// DecodeEvent reads a record back into its event, for AnyRow.Apply.
	DecodeEvent(Record) (any, error)
	// EncodeEvent returns the record of an event from DecodeEvent.
	EncodeEvent(event any) (Record, error)
	// FoldRecord returns the state, an S or nil for none, after a record.
	FoldRecord(state any, r Record) (any, error)
	// IntendJob addresses a command on JobLife to a job. The intent fails for a kind that is no job.
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

// A Row is the current state of one resource, and where in the log it comes from. Rows of a view
// never change; their states may share maps and slices, so do not edit those.
type Row[S any] struct {
	Name       Name
	State      S
	CreateTime time.Time // of the event that created the resource, UTC
	UpdateTime time.Time // of its last event, UTC
	Version    uint64    // position of its last event

	// CreateEvent is the ID of the event that created the resource. It is unique even when the
	// name is used again: directories are named by it.
	CreateEvent string
}

// AnyRow is a *Row[S] for code that serves every S.
type AnyRow interface {
	// Head returns the row without its state.
	Head() Row[struct{}]
	// Value returns the state, an S.
	Value() any
	// Pointer returns the address of the state, an *S. Do not change what it points to.
	Pointer() any
	// Clone returns a copy that Apply may change.
	Clone() AnyRow
	// Apply evolves the state by an event from DecodeEvent, which was recorded at a position, and
	// reports whether the resource exists after it.
	Apply(event any, position uint64, id string, at time.Time) (exists bool)
	// Restore sets the row to a head and a state in JSON.
	Restore(head Row[struct{}], state json.RawMessage) error
}

// Head implements AnyRow.
func (r *Row[S]) Head() Row[struct{}] {
	return WithState(*r, struct{}{})
}

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
	existed := r.exists()
	event.(Event[S]).Evolve(&r.State)
	r.Version, r.UpdateTime = position, at
	exists = r.exists()
	if exists && !existed {
		r.CreateTime, r.CreateEvent = at, id
	}
	applied = true
	return exists
}

func (r *Row[S]) exists() bool {
	state, ok := any(&r.State).(State)
	return ok && state.Exists()
}

// Restore implements AnyRow.
func (r *Row[S]) Restore(head Row[struct{}], state json.RawMessage) error {
	*r = WithState(head, r.State)
	return json.Unmarshal(state, &r.State)
}

// WithState returns a row with another state.
func WithState[S, T any](r Row[S], state T) Row[T] {
	return Row[T]{Name: r.Name, State: state, CreateTime: r.CreateTime, UpdateTime: r.UpdateTime,
		Version: r.Version, CreateEvent: r.CreateEvent}
}

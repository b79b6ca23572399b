// Package domain defines the resources of the platform, their events, and the commands that decide
// on new events. It is pure: no I/O, no clock, no randomness.
package domain

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
)

// A State is the state of one resource. The zero value is the state of a resource that was not
// created or was deleted.
type State interface{ Exists() bool }

// An Event is a change of the state of one resource. Evolve clones maps and slices of the state
// before it changes them, because earlier states share them.
type Event[S any] interface{ Evolve(*S) }

// A Command is a request to change one resource with state S. Decide has exactly three outcomes: an
// event; nil, when the change is already recorded; or an error, when the change is not possible
// now.
type Command[S any] interface {
	Decide(state S, now time.Time) (Event[S], error)
}

// A Kind is a kind of resource: its collection, and the events it records.
type Kind[S any] struct {
	Collection string // collection in resource names, such as supervisedFineTuningJobs
	events     map[string]storedEvent[S]
	names      map[reflect.Type]string
	deletion   func(*S) *Deletion // returns the Deletion in a state; nil unless the kind is referenceable
	life       func(*S) *JobLife  // returns the JobLife in a state; nil unless the kind is a kind of job
}

type storedEvent[S any] struct {
	goType reflect.Type
	decode func(json.RawMessage) (Event[S], error)
}

// NewKind returns a kind. The keys of events are the stored names, such as "deployment.created.v1",
// and the values are zero values of the event types.
func NewKind[S any](collection string, events map[string]Event[S]) *Kind[S] {
	k := &Kind[S]{Collection: collection, events: map[string]storedEvent[S]{}, names: map[reflect.Type]string{}}
	for name, zero := range events {
		t := reflect.TypeOf(zero)
		k.names[t] = name
		k.events[name] = storedEvent[S]{t, func(data json.RawMessage) (Event[S], error) {
			p := reflect.New(t)
			if err := json.Unmarshal(data, p.Interface()); err != nil {
				return nil, err
			}
			return p.Elem().Interface().(Event[S]), nil
		}}
	}
	return k
}

// Extend adds the events of part to k and returns k, so that several kinds can share a lifecycle.
// The state of k contains a state of part, which lens returns. prefix precedes the stored names of
// the added events.
func Extend[S, T any](k *Kind[S], prefix string, part *Kind[T], lens func(*S) *T) *Kind[S] {
	for name, f := range part.events {
		k.names[f.goType] = prefix + name
		k.events[prefix+name] = storedEvent[S]{f.goType, func(data json.RawMessage) (Event[S], error) {
			inner, err := f.decode(data)
			return lifted[S, T]{inner, lens}, err
		}}
	}
	return k
}

// A lifted event is an event of a part, such as JobLife or Deletion, in a kind whose state contains
// this part: see Extend.
type lifted[S, T any] struct {
	part Event[T]
	lens func(*S) *T
}

// Evolve applies the event to the part of the state. When the part does not exist after the event,
// Evolve clears the whole state.
func (e lifted[S, T]) Evolve(s *S) {
	e.part.Evolve(e.lens(s))
	if state, ok := any(*s).(State); ok && !state.Exists() {
		var none S
		*s = none
	}
}

func (e lifted[S, T]) stored() any { return e.part }

type liftedCommand[S, T any] struct {
	part Command[T]
	lens func(*S) *T
}

func (c liftedCommand[S, T]) Decide(s S, now time.Time) (Event[S], error) {
	event, err := c.part.Decide(*c.lens(&s), now)
	if err != nil || event == nil {
		return nil, err
	}
	return lifted[S, T]{event, c.lens}, nil
}

// EventTypes yields the stored names of the events in alphabetical order, each with its Go type.
func (k *Kind[S]) EventTypes() iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		for _, name := range slices.Sorted(maps.Keys(k.events)) {
			if !yield(name, k.events[name].goType) {
				return
			}
		}
	}
}

// A Record is an event as it is stored in the log.
type Record struct {
	Type  string
	Data  json.RawMessage
	State string // name of the state after the event, for readers of the log that do not fold events: see StateNamer
}

// A StateNamer is a state whose resource has a lifecycle state, such as CREATING or READY.
type StateNamer interface{ StateName() string }

// Encode returns the record of an event, as it is stored in the log.
func (k *Kind[S]) Encode(e Event[S]) (Record, error) {
	var inner any = e
	if l, ok := e.(interface{ stored() any }); ok {
		inner = l.stored()
	}
	name, ok := k.names[reflect.TypeOf(inner)]
	if !ok {
		return Record{}, fmt.Errorf("%s: event type %T has no stored name: pass it to NewKind", k.Collection, inner)
	}
	data, err := json.Marshal(inner)
	return Record{Type: name, Data: data}, err
}

// Decode returns the event that is stored in a record.
func (k *Kind[S]) Decode(r Record) (Event[S], error) {
	f, ok := k.events[r.Type]
	if !ok {
		return nil, fmt.Errorf("%s: unknown event %q, written by a newer version of anneal: upgrade this server",
			k.Collection, r.Type)
	}
	e, err := f.decode(r.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", k.Collection, r.Type, err)
	}
	return e, nil
}

// Fold applies the event in one record to the state.
func (k *Kind[S]) Fold(state *S, r Record) error {
	e, err := k.Decode(r)
	if err == nil {
		e.Evolve(state)
	}
	return err
}

// An Intent is a command and the resource that it is addressed to.
type Intent struct {
	Name    Name
	Command any // the command, for log messages and test transcripts
	// Version is the version of the resource's row from which the command was computed. The command
	// is refused on any other version: see ErrStale. 0 allows every version.
	Version uint64
	// CreateEvent is the ID of the event that created the resource for which the command was
	// computed. The command is refused on a later resource with the same name: see
	// CheckCreateEvent. "" allows every resource with the name.
	CreateEvent string
	decide      func(state any, now time.Time) (Record, error)
}

// Intend returns the intent that addresses cmd to a resource of the kind.
func Intend[S any](k *Kind[S], name Name, cmd Command[S]) Intent {
	var shown any = cmd
	return intend(k, name, cmd, shown)
}

// A stateKeeper is an event that never changes the StateName of the state, so that it need not be
// applied to find out the name.
type stateKeeper interface{ keepsState() }

func intend[S any](k *Kind[S], name Name, cmd Command[S], shown any) Intent {
	return Intent{Name: name, Command: shown, decide: func(state any, now time.Time) (Record, error) {
		var s S
		if state != nil {
			s = state.(S)
		}
		event, err := cmd.Decide(s, now)
		if err != nil || event == nil {
			return Record{}, existing(err, name)
		}
		record, err := k.Encode(event)
		if _, keeps := event.(stateKeeper); !keeps {
			event.Evolve(&s)
		}
		if staged, ok := any(s).(StateNamer); ok {
			record.State = staged.StateName()
		}
		return record, err
	}}
}

// At returns the intent with its Version set to version.
func (i Intent) At(version uint64) Intent {
	i.Version = version
	return i
}

// Of returns the intent with its CreateEvent set to createEvent.
func (i Intent) Of(createEvent string) Intent {
	i.CreateEvent = createEvent
	return i
}

// CheckCreateEvent returns an error if the intent has a CreateEvent other than createEvent, the ID
// of the event that created the resource.
func (i Intent) CheckCreateEvent(createEvent string) error {
	if i.CreateEvent == "" || i.CreateEvent == createEvent {
		return nil
	}
	return notFound("resource " + string(i.Name) + " that the command is for")
}

// IsStale reports whether the intent has a Version that is not version, the current version of the
// resource's row.
func (i Intent) IsStale(version uint64) bool { return i.Version != 0 && i.Version != version }

// ErrStale is the error of an intent whose row has another version than the command was computed
// from.
var ErrStale = &Error{Code: Aborted, Reason: "STALE", Message: "the resource was changed concurrently: try again"}

// Decide runs the command on the state of the resource, which is nil when the resource does not
// exist. It returns the record of the event, or an empty Record when the event is already recorded.
func (i Intent) Decide(state any, now time.Time) (Record, error) { return i.decide(state, now) }

// String returns the name, the command and its fields on one line, for test transcripts.
func (i Intent) String() string {
	data, _ := json.Marshal(i.Command)
	name, _, _ := strings.Cut(reflect.TypeOf(i.Command).Name(), "[")
	return fmt.Sprintf("%s %s %s", i.Name, name, data)
}

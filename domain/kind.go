// Package domain says what the platform is: its resources, the events recorded
// about them, and the decisions that lead to new events. It is pure: no I/O, no
// clock, no randomness.
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

// A State is what is true about one resource. Its zero value is a resource
// that does not exist: not yet, or not any more.
type State interface{ Exists() bool }

// An Event changes the state of one S. Evolve must not change anything that the
// state before shares with others: maps and slices are cloned, never edited.
type Event[S any] interface{ Evolve(*S) }

// A Command is a request to change one S. Decide answers in exactly three ways: an
// event; nothing, when this very event is already recorded; or an error, when it
// cannot be so now.
type Command[S any] interface {
	Decide(state S, now time.Time) (Event[S], error)
}

// A Kind names a collection and the events it may record.
type Kind[S any] struct {
	Collection string // as in resource names: supervisedFineTuningJobs
	events     map[string]storedEvent[S]
	names      map[reflect.Type]string
	deletion   func(*S) *Deletion // of a kind that others work with, otherwise nil
	life       func(*S) *JobLife  // of a kind of job, otherwise nil
}

type storedEvent[S any] struct {
	goType reflect.Type
	decode func(json.RawMessage) (Event[S], error)
}

// NewKind makes a kind from its stored names ("deployment.created.v1") and the
// zero values of their events.
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

// Extend adds to k the events of a part that its state contains, with a prefix
// to their stored names: so one life cycle serves several kinds.
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

// A lifted event is the event of a part, applied to the whole.
type lifted[S, T any] struct {
	part Event[T]
	lens func(*S) *T
}

// Evolve changes the part. When that ends, the whole does.
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

// EventTypes yields the stored names in order, with the Go type of each event.
func (k *Kind[S]) EventTypes() iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		for _, name := range slices.Sorted(maps.Keys(k.events)) {
			if !yield(name, k.events[name].goType) {
				return
			}
		}
	}
}

// A Record is an event as the log keeps it.
type Record struct {
	Type  string
	Data  json.RawMessage
	Stage string // what the event leads to, for who reads the log without folding it: see Staged
}

// A Staged state has a word for how far its resource is: CREATING, READY.
type Staged interface{ Stage() string }

// Encode returns the record of an event.
func (k *Kind[S]) Encode(e Event[S]) (Record, error) {
	var inner any = e
	if l, ok := e.(interface{ stored() any }); ok {
		inner = l.stored()
	}
	name, ok := k.names[reflect.TypeOf(inner)]
	if !ok {
		return Record{}, fmt.Errorf("%s: %T has no stored name", k.Collection, inner)
	}
	data, err := json.Marshal(inner)
	return Record{Type: name, Data: data}, err
}

// Decode reads a record back into its event.
func (k *Kind[S]) Decode(r Record) (Event[S], error) {
	f, ok := k.events[r.Type]
	if !ok {
		return nil, fmt.Errorf("%s: unknown event %q: written by a newer version", k.Collection, r.Type)
	}
	e, err := f.decode(r.Data)
	if err != nil {
		return nil, fmt.Errorf("%s: %s: %w", k.Collection, r.Type, err)
	}
	return e, nil
}

// Fold applies one record to the state.
func (k *Kind[S]) Fold(state *S, r Record) error {
	e, err := k.Decode(r)
	if err == nil {
		e.Evolve(state)
	}
	return err
}

// An Intent is a command addressed to one resource.
type Intent struct {
	Name    Name
	Command any // for messages and transcripts
	decide  func(state any, now time.Time) (Record, error)
}

// Intend addresses cmd to the named resource of a kind.
func Intend[S any](k *Kind[S], name Name, cmd Command[S]) Intent {
	var shown any = cmd
	return intend(k, name, cmd, shown)
}

func intend[S any](k *Kind[S], name Name, cmd Command[S], shown any) Intent {
	return Intent{name, shown, func(state any, now time.Time) (Record, error) {
		var s S
		if state != nil {
			s = state.(S)
		}
		event, err := cmd.Decide(s, now)
		if err != nil || event == nil {
			return Record{}, err
		}
		record, err := k.Encode(event)
		event.Evolve(&s)
		if staged, ok := any(s).(Staged); ok {
			record.Stage = staged.Stage()
		}
		return record, err
	}}
}

// Decide runs the command on the state that the world holds (an S, or nil for
// no resource). An empty Record means that the event is already recorded.
func (i Intent) Decide(state any, now time.Time) (Record, error) { return i.decide(state, now) }

// String is a line for transcripts: name, command and its fields.
func (i Intent) String() string {
	data, _ := json.Marshal(i.Command)
	name, _, _ := strings.Cut(reflect.TypeOf(i.Command).Name(), "[")
	return fmt.Sprintf("%s %s %s", i.Name, name, data)
}

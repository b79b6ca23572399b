// Package domain says what the platform is: its resources, the facts recorded
// about them, and the decisions that lead to new facts. It is pure: no I/O, no
// clock, no randomness.
package domain

import (
	"encoding/json"
	"fmt"
	"iter"
	"maps"
	"reflect"
	"slices"
	"time"
)

// An Event is a fact about one S. Evolve must not change anything that the
// state before shares with others: maps and slices are cloned, never edited.
type Event[S any] interface{ Evolve(*S) }

// A Command is a wish about one S. Decide answers in exactly three ways: an
// event; nothing, when this very fact is already recorded; or a fault, when it
// cannot be so now.
type Command[S any] interface {
	Decide(state S, now time.Time) (Event[S], error)
}

// A Kind names a collection and the facts it may record.
type Kind[S any] struct {
	Collection string // as in resource names: supervisedFineTuningJobs
	types      map[string]reflect.Type
	names      map[reflect.Type]string
}

// NewKind makes a kind from its stored names ("deployment.created.v1") and the
// zero values of the facts they stand for.
func NewKind[S any](collection string, events map[string]Event[S]) *Kind[S] {
	k := &Kind[S]{collection, map[string]reflect.Type{}, map[reflect.Type]string{}}
	for name, zero := range events {
		t := reflect.TypeOf(zero)
		k.types[name], k.names[t] = t, name
	}
	return k
}

// EventTypes yields the stored names in order, with the Go type of each fact.
func (k *Kind[S]) EventTypes() iter.Seq2[string, reflect.Type] {
	return func(yield func(string, reflect.Type) bool) {
		for _, name := range slices.Sorted(maps.Keys(k.types)) {
			if !yield(name, k.types[name]) {
				return
			}
		}
	}
}

// A Record is an event as the log keeps it.
type Record struct {
	Type string
	Data json.RawMessage
}

// Encode writes a fact down under its stored name.
func (k *Kind[S]) Encode(e Event[S]) (Record, error) {
	name, ok := k.names[reflect.TypeOf(e)]
	if !ok {
		return Record{}, fmt.Errorf("%s: %T has no stored name", k.Collection, e)
	}
	data, err := json.Marshal(e)
	return Record{name, data}, err
}

// Decode reads a record back into the fact it holds.
func (k *Kind[S]) Decode(r Record) (Event[S], error) {
	t, ok := k.types[r.Type]
	if !ok {
		return nil, fmt.Errorf("%s: unknown event %q: written by a newer version", k.Collection, r.Type)
	}
	p := reflect.New(t)
	if err := json.Unmarshal(r.Data, p.Interface()); err != nil {
		return nil, fmt.Errorf("%s: %s: %w", k.Collection, r.Type, err)
	}
	return p.Elem().Interface().(Event[S]), nil
}

// Fold applies one record to the state.
func (k *Kind[S]) Fold(state *S, r Record) error {
	e, err := k.Decode(r)
	if err == nil {
		e.Evolve(state)
	}
	return err
}

// An Intent is a command addressed to one resource. State is the row that the
// world holds for it, a zero S when it holds none.
type Intent struct {
	Name    Name
	Command any // for messages and traces
	decide  func(state any, now time.Time) (Record, error)
}

// Intend addresses cmd to the named resource of a kind.
func Intend[S any](k *Kind[S], name Name, cmd Command[S]) Intent {
	return Intent{name, cmd, func(state any, now time.Time) (Record, error) {
		var s S
		if state != nil {
			s = state.(S)
		}
		event, err := cmd.Decide(s, now)
		if err != nil || event == nil {
			return Record{}, err
		}
		return k.Encode(event)
	}}
}

// Decide runs the command on the state (an S, or nil for no resource). An
// empty Record means that the fact is already recorded.
func (i Intent) Decide(state any, now time.Time) (Record, error) { return i.decide(state, now) }

// String is a line for transcripts: name, command and its fields.
func (i Intent) String() string {
	data, _ := json.Marshal(i.Command)
	return fmt.Sprintf("%s %s %s", i.Name, reflect.TypeOf(i.Command).Name(), data)
}

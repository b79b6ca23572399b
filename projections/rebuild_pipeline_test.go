package projections

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections/toytest"
)

// A storingLog reports that it has stored an event, as JetStream does before the event is synced.
type storingLog struct{ *eventlog.Memory }

func (l storingLog) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	position, err := l.Memory.Append(ctx, w)
	if err == nil && w.Stored != nil {
		w.Stored(position)
	}
	return position, err
}

// TestRebuildForgetsStoredEvents checks that after a rebuild no command is decided on a row that the
// rebuild replaced.
func TestRebuildForgetsStoredEvents(t *testing.T) {
	memory, w := threeToys(t)
	ready := make(chan struct{})
	one := toytest.Name("acme", 1)
	right := w.Lookup(one).State.(toytest.Toy).Size
	corrupt(w, one, func(toy *toytest.Toy) { toy.Size = 77 })
	log := storingLog{memory}
	_, err := eventlog.Do(t.Context(), log, w, eventlog.Request{Time: toytest.Epoch}, intendTag(one, "x"))
	require.NoError(t, err)
	_, err = Rebuild(t.Context(), w, memory, ignoreProgress)
	require.NoError(t, err)
	require.Equal(t, right, w.Lookup(one).State.(toytest.Toy).Size)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); <-ready; _ = w.Run(ctx, memory) }()
	defer func() { cancel(); <-done }()
	// the world follows the log only when the command has been decided
	time.AfterFunc(50*time.Millisecond, func() { close(ready) })
	change, err := eventlog.Do(t.Context(), log, w, eventlog.Request{Time: toytest.Epoch}, intendTag(one, "y"))
	require.NoError(t, err)
	require.Equal(t, right, change.Before.State.(toytest.Toy).Size, "decided on the row that the rebuild replaced")
}

// A tagCommand sets the tag of a toy.
type tagCommand string

func (c tagCommand) Decide(toytest.Toy, time.Time) (domain.Event[toytest.Toy], error) {
	return toytest.Tag(string(c)), nil
}

func intendTag(name domain.Name, tag string) domain.Intent {
	return domain.Intend(toytest.Kind, name, domain.Command[toytest.Toy](tagCommand(tag)))
}

package natsserver

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
)

// TestAppendToAFullDisk checks that Append to a log on a full disk returns a domain error, and
// succeeds again once there is space.
func TestAppendToAFullDisk(t *testing.T) {
	server := mustStart(t, Options{Dir: t.TempDir()})
	t.Cleanup(server.Close)
	free := uint64(disk.Events)
	files := server.files
	files.Space = disk.New(func() (uint64, error) { return free, nil })
	server.log.UseFiles(files)
	write := func(id string, expect uint64) error {
		_, err := server.Log().Append(t.Context(),
			eventlog.Write{Event: eventlog.Event{ID: id, Name: "accounts/acme",
				Record: domain.Record{Type: "t", Data: []byte("{}")}}, Expect: expect})
		return err
	}
	require.NoError(t, write("one", 0))
	free = 0
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(write("two", 1)))
	last, err := server.Log().Last(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, last.Position)
	free = uint64(disk.Events)
	require.NoError(t, write("two", 1))
}

// TestWatch checks that Watch returns an error when the NATS server reports that it stores no more
// messages.
func TestWatch(t *testing.T) {
	server := mustStart(t, Options{Dir: t.TempDir()})
	t.Cleanup(server.Close)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, server.Watch(ended), context.Canceled)
	log := serverLog{broken: server.broken}
	log.Errorf("JetStream failed to store a msg on stream '%s > %s': %v", "CONTROL", "EVENTS", "wrong last sequence")
	require.ErrorIs(t, server.Watch(ended), context.Canceled)
	log.Errorf("JetStream stream '%s > %s' critical write error: %v", "CONTROL", "EVENTS", "no space left on device")
	log.Errorf("JetStream out of space, will be DISABLED")
	err := server.Watch(t.Context())
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.Contains(t, err.Error(), "no space left on device")
}

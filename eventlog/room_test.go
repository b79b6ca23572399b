package eventlog

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestRoom(t *testing.T) {
	free, err := freeBytes(t.TempDir())
	require.NoError(t, err)
	require.Positive(t, free)
	for name, test := range map[string]struct {
		room *room
		code domain.Code
	}{
		"a cluster's":    {nil, domain.OK},
		"enough":         {&room{free: func(string) (uint64, error) { return spareRoom, nil }}, domain.OK},
		"a byte too few": {&room{free: func(string) (uint64, error) { return spareRoom - 1, nil }}, domain.Unavailable},
		"unknown":        {&room{free: func(string) (uint64, error) { return 0, errors.New("not told") }}, domain.OK},
	} {
		t.Run(name, func(t *testing.T) { require.Equal(t, test.code, domain.CodeOf(test.room.check())) })
	}
}

// A log whose disk is full refuses, and takes events again when it is not.
func TestAppendToAFullDisk(t *testing.T) {
	server, err := StartServer(ServerOptions{Dir: t.TempDir()})
	require.NoError(t, err)
	t.Cleanup(server.Close)
	free := uint64(spareRoom)
	server.log.room = &room{free: func(string) (uint64, error) { return free, nil }}
	write := func(id string, expect uint64) error {
		_, err := server.Log().Append(t.Context(), Write{Event: Event{ID: id, Name: "accounts/acme", Record: domain.Record{Type: "t", Data: []byte("{}")}}, Expect: expect})
		return err
	}
	require.NoError(t, write("one", 0))
	free = 0
	require.Equal(t, domain.Unavailable, domain.CodeOf(write("two", 1)))
	last, err := server.Log().Last(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 1, last.Position)
	free = spareRoom
	require.NoError(t, write("two", 1))
}

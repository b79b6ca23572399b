package eventlog_test

import (
	"anneal/eventlog"
	"anneal/eventlog/logtest"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/servertest"
	"context"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestAppendThatStopsWaitingIsUncertain(t *testing.T) {
	s := servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false })
	begun, proceed := make(chan struct{}, 2), make(chan struct{})
	s.Log().SetBlockSync(func(*os.File) error { begun <- struct{}{}; <-proceed; return nil })
	first := make(chan error, 1)
	go func() {
		_, err := s.Log().Append(t.Context(), logtest.Write("a", 0))
		first <- err
	}()
	<-begun
	ctx, cancel := context.WithCancel(t.Context())
	second := make(chan error, 1)
	go func() {
		_, err := s.Log().Append(ctx, logtest.Write("b", 0))
		second <- err
	}()
	for waiting := false; !waiting; {
		waiting = s.Log().NextRoundAwaited()
	}
	cancel()
	assert.ErrorIs(t, <-second, eventlog.ErrUncertain)
	close(proceed)
	require.NoError(t, <-first)
	assert.Len(t, logtest.Collect(t, s.Log().Read(t.Context(), "", 0)), 2)
}

func TestAppendToAFailedDiskIsUncertain(t *testing.T) {
	s := servertest.Start(t, func(o *natsserver.Options) { o.NoSync = false })
	s.Log().SetBlockSync(func(*os.File) error { return errors.New("input/output error") })
	_, err := s.Log().Append(t.Context(), logtest.Write("a", 0))
	require.ErrorContains(t, err, "input/output error")
	assert.NotErrorIs(t, err, eventlog.ErrConflict)
	assert.ErrorIs(t, err, eventlog.ErrUncertain)
}

package eventlog

import (
	"context"
	"errors"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// silent loses the acknowledgement of what it records, and cannot be read then.
type silent struct{ *Memory }

func (s silent) Append(ctx context.Context, writes ...Write) (uint64, error) {
	_, err := s.Memory.Append(ctx, writes...)
	return 0, errors.Join(ErrUncertain, err)
}

func (s silent) Read(context.Context, string, uint64) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		yield(Event{}, domain.Faultf(domain.Unavailable, "the event log does not answer"))
	}
}

// A fault says that nothing was recorded: whoever gets one takes back what he
// prepared. So what may have been recorded is none.
func TestUncertaintyIsNoFault(t *testing.T) {
	log := NewMemory()
	_, err := Do(t.Context(), silent{log}, follow(t, log), Request{Time: time.Now()}, domain.Intend(counters, name("a"), add{1}))
	require.ErrorIs(t, err, ErrUncertain)
	require.ErrorContains(t, err, "does not answer")
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	s := start(t, func(o *ServerOptions) { o.NoSync = false })
	s.Log().disk.sync = func(f *os.File) error { return errors.New("input/output error") }
	_, err = s.Log().Append(t.Context(), write("a", 0))
	require.ErrorIs(t, err, ErrUncertain)
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	// Nobody waits for ever for what a failed disk holds back: the server ends.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for _, err := range s.Log().Follow(ctx, "", 0) {
		require.ErrorContains(t, err, "input/output error")
	}
	require.NoError(t, ctx.Err())
}

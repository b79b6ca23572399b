package transparency

import (
	"bytes"
	"strconv"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/tlog"

	"anneal/eventlog/integrity"
	"anneal/internal/testutil"
)

// TestHashesAreThoseOfTheLibrary compares the hashes of the tree with those of package tlog.
func TestHashesAreThoseOfTheLibrary(t *testing.T) {
	for position := range uint64(100) {
		s := newSalter([]byte{byte(position)}).salts(position)
		e := Entry{Position: position, Envelope: s.Envelope, Payload: s.Payload}
		require.Equal(t, tlog.RecordHash(e.Append(nil)), e.Leaf())
		require.Equal(t, tlog.NodeHash(tlog.Hash(s.Payload), e.Leaf()), nodeHash(tlog.Hash(s.Payload), e.Leaf()))
	}
}

// TestFeed compares what a feed returns with the events that were added: events of all sizes,
// larger than a chunk too, some of them added twice. A feed drops what it has when an event is
// missing.
func TestFeed(t *testing.T) {
	f, random := newFeed(), testutil.Random(t)
	for range 20 {
		var want []encodedEvent
		position := random.Uint64N(1000) + 1
		for range random.IntN(200) {
			m := integrity.NewMessage(position, "events.a.b", []integrity.Attribute{{Name: "ce-id", Value: "1"}},
				make([]byte, random.IntN(1<<random.IntN(20))))
			want = append(want, encodeEvent(m))
			f.add(m)
			f.add(m)
			position++
			if random.IntN(300) == 0 {
				position, want = position+1, nil
			}
		}
		var got []encodedEvent
		for _, c := range f.take() {
			for e := range c.all {
				got = append(got, encodedEvent{e.position, bytes.Clone(e.envelope), bytes.Clone(e.body)})
			}
			c.release()
		}
		if len(want) > 0 { // otherwise the feed may still have events before the missing one
			require.Equal(t, len(want), len(got))
			for i := range want {
				require.Equal(t, want[i].position, got[i].position)
				require.Equal(t, want[i].envelope, got[i].envelope)
				require.True(t, bytes.Equal(want[i].body, got[i].body))
			}
		}
	}
}

// TestFeedKeepsNoMessage checks that the events of a feed do not change when their message is
// reused, and that taken events do not change while the feed receives others.
func TestFeedKeepsNoMessage(t *testing.T) {
	f, body := newFeed(), make([]byte, 1<<10)
	var m integrity.Message
	add := func(position uint64) encodedEvent {
		for i := range body {
			body[i] = byte(position)
		}
		m.Set(position, "events.a.b", nats.Header{"ce-id": {strconv.FormatUint(position, 10)}}, body)
		f.add(m)
		e := encodeEvent(m)
		return encodedEvent{e.position, e.envelope, bytes.Clone(e.body)}
	}
	var want []encodedEvent
	for position := range uint64(1000) {
		want = append(want, add(position+1))
	}
	taken := f.take()
	for position := range uint64(1000) {
		add(position + 1001)
	}
	for _, c := range taken {
		for e := range c.all {
			require.Equal(t, want[0], e)
			want = want[1:]
		}
		c.release()
	}
	require.Empty(t, want)
}

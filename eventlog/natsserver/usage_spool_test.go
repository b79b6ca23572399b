package natsserver

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"anneal/eventlog/metering"
	"anneal/internal/testutil"
)

// killMeter imitates kill -9 of a meter's process: it returns a copy of the meter's directory,
// taken while the meter runs, and ends the meter.
func killMeter(t *testing.T, meter *metering.Meter, dir string) string {
	t.Helper()
	copied := t.TempDir()
	entries := testutil.ReadDir(t, dir)
	// Copy the cursor first, because a process never has a cursor beyond what its other files contain.
	slices.SortFunc(entries, func(a, b fs.DirEntry) int {
		return len(filepath.Ext(b.Name())) - len(filepath.Ext(a.Name()))
	})
	read := func(name string) ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) }
	if data, err := read("cursor.json"); err == nil {
		require.NoError(t, os.WriteFile(filepath.Join(copied, "cursor.json"), data, 0o600))
	}
	for _, e := range entries {
		if filepath.Ext(e.Name()) != ".usage" {
			continue
		}
		data, err := read(e.Name())
		if err != nil { // the spool has deleted the file in the meantime: its entries are before the cursor, or in the stream
			require.ErrorIs(t, err, fs.ErrNotExist)
			continue
		}
		require.NoError(t, os.WriteFile(filepath.Join(copied, e.Name()), data, 0o600))
	}
	require.NoError(t, meter.Close())
	return copied
}

// TestUsageIsRecordedExactlyOnce checks that each metered request has exactly one record in the
// stream, with consecutive numbers, although meters are killed and the NATS server restarts at
// random. Set ANNEAL_KILLS for more than a few kills.
func TestUsageIsRecordedExactlyOnce(t *testing.T) {
	kills := testutil.Variable(t, "ANNEAL_KILLS", 8)
	random := testutil.Random(t)
	store := t.TempDir()
	begin := func() *Server {
		s := mustStart(t, Options{Dir: store})
		return s
	}
	s, dir, logger := begin(), t.TempDir(), slog.New(slog.DiscardHandler)
	open := func() *metering.Meter {
		plane := fmt.Sprint("cp-", 1+random.IntN(10)/9) // sometimes the meter is started with another name
		meter, err := metering.NewMeter(metering.MeterOptions{Conn: s.control, Dir: dir, ID: plane, Logger: logger})
		require.NoError(t, err)
		return meter
	}
	meter, requests := open(), 0
	want := map[string]int{}
	record := func(id string) {
		one := usageOf("acme", metering.Chat)
		one.Request, one.ID = fmt.Sprint("r-", requests), id
		if id != "" {
			one.Request = id
		}
		requests++
		want[one.Request] = 1
		require.NoError(t, meter.Record(one))
	}
	for kill := range kills {
		for range random.IntN(600) {
			switch {
			case random.IntN(100) == 0:
				// this request of a batch may have been metered before
				record(fmt.Sprint("batch-", kill-random.IntN(2), "-", random.IntN(4)))
			default:
				record("")
			}
		}
		if random.IntN(4) == 0 {
			for meter.Waiting() > 0 && random.IntN(1000) > 0 {
				continue // kill the meter at another point of its progress
			}
		}
		dir = killMeter(t, meter, dir)
		if random.IntN(3) == 0 {
			s.Close()
			s = begin()
		}
		meter = open()
	}
	require.NoError(t, meter.Drain(t.Context()))
	require.NoError(t, meter.Close())
	t.Cleanup(s.Close)

	stream, err := jetstreamOf(t, s.control).Stream(t.Context(), metering.Stream)
	require.NoError(t, err)
	consumer, err := stream.OrderedConsumer(t.Context(), jetstream.OrderedConsumerConfig{})
	require.NoError(t, err)
	got, numbers := map[string]int{}, map[string]map[uint64]int{"cp-1": {}, "cp-2": {}}
	messages, err := consumer.Messages()
	require.NoError(t, err)
	defer messages.Stop()
	for range stream.CachedInfo().State.Msgs {
		message, err := messages.Next(jetstream.NextContext(t.Context()))
		require.NoError(t, err)
		var data struct{ Number uint64 }
		require.NoError(t, json.Unmarshal(message.Data(), &data))
		got[message.Headers().Get("ce-correlation")]++
		numbers[message.Headers().Get("ce-controlplane")][data.Number]++
	}
	require.Equal(t, want, got)
	for plane, all := range numbers {
		for n := range uint64(len(all)) {
			require.Equal(t, 1, all[n+1], "number %d of %d of %s", n+1, len(all), plane)
		}
	}
}

// TestTheSpoolIsNotBlocked checks that records are sent although an entry before them is not a
// record, and although the stream has deleted the records after the cursor.
func TestTheSpoolIsNotBlocked(t *testing.T) {
	s, dir := start(t), t.TempDir()
	entry := []byte(`{"record": "of another version"}`)
	file := binary.LittleEndian.AppendUint32(nil, uint32(len(entry)))
	file = binary.LittleEndian.AppendUint32(file, crc32.Checksum(entry, crc32.MakeTable(crc32.Castagnoli)))
	require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%020d.usage", 1)), append(file, entry...), 0o600))
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	send := func() {
		t.Helper()
		meter := meterOf(t, s, dir, slog.New(slog.DiscardHandler))
		require.NoError(t, meter.Record(usageOf("acme", metering.Chat)))
		require.NoError(t, meter.Drain(ctx))
		require.NoError(t, meter.Close())
	}
	send()
	js := jetstreamOf(t, s.control)
	stream, err := js.Stream(ctx, metering.Stream)
	require.NoError(t, err)
	config := stream.CachedInfo().Config
	config.AllowMsgTTL = true
	_, err = js.UpdateStream(ctx, config)
	require.NoError(t, err)
	_, err = js.Publish(ctx, "usage.acme.chat", []byte("{}"), jetstream.WithMsgTTL(time.Second))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		info, err := stream.Info(ctx)
		return err == nil && info.State.Msgs == 1 && info.State.LastSeq == 2
	}, startTimeout, 10*time.Millisecond)
	send()
}

// TestARepeatedRecordKeepsItsNumber checks that the next record has another number when the stream
// drops a record of a batch because it has it from this control plane, although the look-up has not
// seen it: the record was on its way then.
func TestARepeatedRecordKeepsItsNumber(t *testing.T) {
	s, dir := start(t), t.TempDir()
	record := func(id string) {
		t.Helper()
		meter := meterOf(t, s, dir, slog.New(slog.DiscardHandler))
		one := usageOf("acme", metering.Chat)
		one.ID = id
		require.NoError(t, meter.Record(one))
		require.NoError(t, meter.Drain(t.Context()))
		require.NoError(t, meter.Close())
	}
	record("batch-1")
	before := `{"next": 1, "sequence": 1, "numbers": {"cp-1": 0}}`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cursor.json"), []byte(before), 0o600))
	record("")
	stream, err := jetstreamOf(t, s.control).Stream(t.Context(), metering.Stream)
	require.NoError(t, err)
	for sequence := range uint64(2) {
		message, err := stream.GetMsg(t.Context(), sequence+1)
		require.NoError(t, err)
		require.Contains(t, string(message.Data), fmt.Sprintf(`"number":%d,`, sequence+1))
	}
}

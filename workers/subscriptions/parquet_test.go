package subscriptions

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/parquet-go/parquet-go"
	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
)

// lines returns the selected events as lines of a JSONL file.
func (b *harness) lines() (all []string) {
	b.Helper()
	for _, e := range b.selected(0) {
		all = append(all, string(testutil.Marshal(b, eventlog.Structured(e))))
	}
	return all
}

// readParquet returns the column event of a Parquet file, and requires that the other columns have the
// attributes of the events.
func (b *harness) readParquet(content string) (lines []string) {
	b.Helper()
	rows, err := parquet.Read[parquetRow](strings.NewReader(content), int64(len(content)))
	require.NoError(b, err)
	for _, row := range rows {
		var e struct{ Position, ID, Type, Subject, Actor, Time string }
		require.NoError(b, json.Unmarshal([]byte(row.Event), &e))
		require.Equal(b, []string{e.Position, e.ID, e.Type, e.Subject, e.Actor, e.Time}, []string{
			strconv.FormatInt(row.Position, 10), row.ID, row.Type, row.Subject, row.Actor,
			row.Time.UTC().Format("2006-01-02T15:04:05.999999999Z07:00")})
		lines = append(lines, row.Event)
	}
	return lines
}

// TestParquetFilesHaveEachEventOnce compares Parquet files with the log, and writes each of them again
// from the log: the content is the same, byte for byte.
func TestParquetFilesHaveEachEventOnce(t *testing.T) {
	b, store := newHarness(t), s3test.Start(t)
	spec := b.toFiles(store)
	spec.Files.Format = domain.EventFilesParquet
	b.subscribe(spec)
	for n := range 95 {
		b.record(fmt.Sprint("d", n%4), n/4)
	}
	stop := b.start()
	b.requireFiles(store)
	stop()
	before := store.Objects()
	require.Greater(t, len(before), 5)
	for key, content := range before {
		require.True(t, strings.HasSuffix(key, ".parquet"), key)
		file, err := parquet.OpenFile(strings.NewReader(content), int64(len(content)))
		require.NoError(t, err)
		require.Len(t, file.RowGroups(), 1)
		lines := strings.Join(b.readParquet(content), "\n") + "\n"
		var all sync.WaitGroup
		for range 4 { // concurrent writes share the pools of the library
			all.Go(func() {
				again, err := parquetOf([]byte(lines), nil)
				if err != nil || !bytes.Equal([]byte(content), again) {
					t.Errorf("another content is written the second time: %v", err)
				}
			})
		}
		all.Wait()
	}
	_, err := parquetOf([]byte("{}\n"), nil)
	require.ErrorContains(t, err, "parse the position")
}

// BenchmarkParquet measures the conversion of a full file.
func BenchmarkParquet(b *testing.B) {
	harness := newHarness(b)
	for n := range 20_000 {
		harness.record(fmt.Sprint("d", n%1000), n/1000)
	}
	log := harness.log
	var content bytes.Buffer
	var rows []parquetRow
	for e, err := range log.Read(b.Context(), "events.>", 0) {
		require.NoError(b, err)
		content.Write(append(testutil.Marshal(b, eventlog.Structured(e)), '\n'))
		rows = append(rows, parquetRowOfEvent(e))
	}
	b.SetBytes(int64(content.Len()))
	size := 0
	for b.Loop() {
		out, err := parquetOf(content.Bytes(), rows)
		require.NoError(b, err)
		size = len(out)
	}
	b.ReportMetric(float64(len(rows))*float64(b.N)/b.Elapsed().Seconds(), "events/s")
	b.ReportMetric(float64(size)/float64(content.Len()), "size/JSONL")
}

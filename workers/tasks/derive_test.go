package tasks_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
)

// do records a command on a dataset and returns its event.
func (b *harness) do(id string, cmd domain.Command[domain.Dataset]) eventlog.Event {
	b.Helper()
	return do(b, domain.Datasets, id, cmd)
}

func (b *harness) state(id string) domain.Dataset {
	b.Helper()
	return stateOf(b, domain.Datasets, id)
}

// source creates a READY dataset of several files.
func (b *harness) source(id string, files ...string) domain.Dataset {
	b.Helper()
	b.do(id, domain.CreateDataset{})
	stored := domain.Files{Prefix: "datasets/acme/" + id + "/1-x/", Sizes: map[string]int64{}}
	rows := 0
	for i, content := range files {
		file := fmt.Sprintf("part-%d.jsonl", i)
		b.put(stored.Prefix+file, strings.NewReader(content))
		stored.Sizes[file] = int64(len(content))
		rows += len(strings.Fields(strings.ReplaceAll(content, " ", "")))
	}
	b.do(id, domain.UploadDataset{Upload: 1, Files: stored})
	b.do(id, domain.AcceptDataset{Upload: 1, DatasetStats: domain.DatasetStats{Format: domain.FormatCompletion,
		Shape: domain.ShapeCompletion, ExampleCount: domain.Count(rows)}})
	return b.state(id)
}

func (b *harness) create(id, from string, d domain.Derivation) eventlog.Event {
	b.Helper()
	d.Source = named(domain.Datasets, from)
	if d.Prefix == "" {
		d.Prefix = b.state(from).Files.Prefix
	}
	return b.do(id, domain.CreateDataset{From: &d})
}

func (b *harness) content(d domain.Dataset) (text string) {
	b.Helper()
	for file := range d.Files.Sizes {
		r, err := b.blobs.Get(b.Context(), d.Files.Prefix+file)
		require.NoError(b, err)
		data, err := io.ReadAll(r)
		require.NoError(b, errors.Join(err, r.Close()))
		require.Equal(b, d.Files.Sizes[file], int64(len(data)))
		text += string(data)
	}
	return text
}

// left returns the blob keys that are left below a prefix after a reconciliation.
func (b *harness) left(directory string) (keys []string) {
	b.Helper()
	r := reconcile.New(reconcile.Options{Log: b.log, World: b.world, Blobs: b.blobs, Keys: secrets.NewMemoryVault()})
	require.NoError(b, r.Reconcile(b.Context(), 0))
	for f, err := range b.blobs.List(b.Context(), directory) {
		require.NoError(b, err)
		keys = append(keys, f.Key)
	}
	return keys
}

// derivedOf returns the rows of the dataset that an event created.
func derivedOf(b *harness, e eventlog.Event) []string {
	b.Helper()
	return b.left(blobs.DerivedPrefix(e.Name, e.ID))
}

// numbered returns one row for each number in the range from..to.
func numbered(from, to int) string {
	var text strings.Builder
	for n := from; n <= to; n++ {
		fmt.Fprintf(&text, `{"prompt":"p%d","completion":"c","n":%d}`+"\n", n, n)
	}
	return text.String()
}

func TestMatchingRowsAreDerived(t *testing.T) {
	b := newHarness(t)
	b.source("source", "\ufeff"+numbered(1, 4)+"\n\n", strings.TrimSuffix(numbered(5, 9), "\n"))
	for id, c := range map[string]struct {
		filter string
		want   string
	}{
		"filtered": {"n > 2 AND n != 6", numbered(3, 5) + numbered(7, 9)},
		"copied":   {"", numbered(1, 9)},
	} {
		e := b.create(id, "source", domain.Derivation{Filter: c.filter})
		require.True(t, b.state(id).Filling())
		require.NoError(t, b.deriver.Derive(t.Context(), e))
		made := b.state(id)
		require.Equal(t, domain.DatasetReady, made.State, made.Status.Message)
		require.Equal(t, c.want, b.content(made))
		require.EqualValues(t, strings.Count(c.want, "\n"), made.ExampleCount)
		require.Equal(t, domain.FormatCompletion, made.Format)
		require.Equal(t, domain.ShapeCompletion, made.Shape)
		require.Positive(t, made.EstimatedTokenCount)
	}
	require.Equal(t, []int64{0, 9, 0, 0}, b.progress[:4], "9 rows were read; the task has ended")
}

func TestSplitSidesPartitionTheRows(t *testing.T) {
	b := newHarness(t)
	b.source("source", numbered(1, 60))
	var sides []string
	for _, rest := range []bool{false, true} {
		id := fmt.Sprintf("side-%t", rest)
		require.NoError(t, b.deriver.Derive(t.Context(), b.create(id, "source",
			domain.Derivation{Split: domain.SplitOf(60, 0.1, 7, rest)})))
		made := b.state(id)
		require.Equal(t, domain.DatasetReady, made.State, made.Status.Message)
		sides = append(sides, b.content(made))
	}
	require.Equal(t, 6, strings.Count(sides[0], "\n"))
	require.Equal(t, 54, strings.Count(sides[1], "\n"))
	for line := range strings.Lines(numbered(1, 60)) {
		require.NotEqual(t, strings.Contains(sides[0], line), strings.Contains(sides[1], line),
			"on one side, not on both: %s", line)
	}
}

func TestFailedDerivations(t *testing.T) {
	b := newHarness(t)
	b.source("source", numbered(1, 9))
	b.source("other", numbered(1, 9))
	e := b.create("few", "source", domain.Derivation{Filter: "n > 7"})
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	few := b.state("few")
	require.True(t, few.FillFailed())
	require.Equal(t, "INVALID_ARGUMENT", few.Status.Code)
	require.Contains(t, few.Status.Message,
		"2 of the 9 rows of accounts/acme/datasets/source match, and at least 3 are needed")
	require.Empty(t, derivedOf(b, e))

	e = b.create("replaced", "source", domain.Derivation{Prefix: "datasets/acme/source/0/"})
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	require.Contains(t, b.state("replaced").Status.Message, "accounts/acme/datasets/source was deleted")

	e = b.create("lost", "other", domain.Derivation{})
	require.NoError(t, b.blobs.DeletePrefix(t.Context(), b.state("other").Files.Prefix))
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	require.Contains(t, b.state("lost").Status.Message, "accounts/acme/datasets/other was deleted")
	require.Empty(t, derivedOf(b, e))
}

// TestRowsAreDerivedOnce checks that a retry after a crash writes the same rows, and that two
// concurrent runs do not interfere.
func TestRowsAreDerivedOnce(t *testing.T) {
	b := newHarness(t)
	b.source("source", numbered(1, 40))
	e := b.create("twice", "source", domain.Derivation{Filter: "n > 2"})
	cut, cancel := context.WithCancel(t.Context())
	cancel()
	require.Error(t, b.deriver.Derive(cut, e), "it was killed")
	both := make(chan error, 2)
	for range 2 {
		d := b.deriver
		d.Progress = func(domain.Name, int64, int64) {}
		go func() { both <- d.Derive(t.Context(), e) }()
	}
	require.NoError(t, errors.Join(<-both, <-both))
	require.Equal(t, numbered(3, 40), b.content(b.state("twice")))
	before := b.last()
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	after := b.last()
	require.Equal(t, before, after, "derived rows are not derived again")
	require.Len(t, derivedOf(b, e), 1)
}

// TestRowsOfADeletedDatasetAreRemoved checks that a dataset that is deleted while its rows are
// derived leaves no files.
func TestRowsOfADeletedDatasetAreRemoved(t *testing.T) {
	b := newHarness(t)
	b.source("source", numbered(1, 9))
	e := b.create("gone", "source", domain.Derivation{})
	b.deriver.Progress = func(dataset domain.Name, read, of int64) {
		if of > 0 {
			b.do("gone", domain.RequestDeletion(domain.Datasets))
			b.do("gone", domain.DeleteDataset{})
		}
	}
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	require.False(t, b.state("gone").Exists())
	require.Empty(t, derivedOf(b, e))
}

// TestRowsAreDerivedInConstantMemory checks that the memory of Derive does not grow with the number
// of rows.
func TestRowsAreDerivedInConstantMemory(t *testing.T) {
	b := newHarness(t)
	row := `{"prompt":"` + strings.Repeat("x", 1<<10) + `","completion":"c"}` + "\n"
	b.source("source", strings.Repeat(row, 32<<10))
	var peak uint64
	b.deriver.Progress = func(domain.Name, int64, int64) { peak = max(peak, inUse()) }
	e := b.create("large", "source", domain.Derivation{Filter: `completion = "c"`})
	before := inUse()
	require.NoError(t, b.deriver.Derive(t.Context(), e))
	require.EqualValues(t, 32<<10, b.state("large").ExampleCount)
	require.Less(t, peak-min(peak, before), uint64(8<<20))
	require.True(t, bytes.HasPrefix([]byte(b.content(b.state("large"))), []byte(row)))
}

// BenchmarkDerive measures how fast rows are read, filtered, validated and written.
func BenchmarkDerive(b *testing.B) {
	harness := newHarness(b)
	row := `{"messages":[{"role":"user","content":"` + strings.Repeat("question ",
		40) + `"},{"role":"assistant","content":"` + strings.Repeat("answer ", 40) + `"}],"n":5}` + "\n"
	source := harness.source("source", strings.Repeat(row, 16<<10))
	b.SetBytes(source.Files.Sizes["part-0.jsonl"])
	for made := 0; b.Loop(); made++ {
		require.NoError(b, harness.deriver.Derive(b.Context(),
			harness.create(fmt.Sprint("d", made), "source", domain.Derivation{Filter: "n > 2"})))
	}
}

// inUse returns the live bytes of the heap.
func inUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

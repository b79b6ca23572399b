package projections

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/internal/testutil"
	"anneal/projections/toytest"
)

// captureLog redirects the default logger to the returned buffer until the test ends.
func captureLog(t *testing.T) *bytes.Buffer {
	var logged bytes.Buffer
	before := slog.Default()
	slog.SetDefault(slog.New(slog.NewTextHandler(&logged, nil)))
	t.Cleanup(func() { slog.SetDefault(before) })
	return &logged
}

func digestOf(t testing.TB, w *World) Digest {
	t.Helper()
	d, err := w.View().Digest()
	require.NoError(t, err)
	return d
}

func files(t *testing.T, dir string) []string {
	t.Helper()
	entries := testutil.ReadDir(t, dir)
	found := []string{}
	for _, e := range entries {
		found = append(found, e.Name())
	}
	return found
}

// threeToys returns a log with events of two toys and of a deleted third one, and a world that
// folded the log.
func threeToys(t *testing.T) (*eventlog.Memory, *World) {
	log, w := eventlog.NewMemory(), toyWorld()
	toytest.Add(t, log, toytest.Name("acme", 1), toytest.Make("ball", 3))
	toytest.Add(t, log, toytest.Name("acme", 2), toytest.Make("<doll> & \u2028", 1<<60))
	toytest.Add(t, log, toytest.Name("acme", 3), toytest.Make("kite", 5))
	toytest.Add(t, log, toytest.Name("acme", 2), toytest.Tag("red"))
	toytest.Add(t, log, toytest.Name("acme", 3), toytest.Broken{})
	return log, replay(t, w, log)
}

func TestOpenIsSnapshotAndTail(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "snapshots")
	log, w := threeToys(t)
	require.NoError(t, w.Save(dir))
	toytest.Add(t, log, toytest.Name("acme", 3), toytest.Make("kite", 6))
	toytest.Add(t, log, toytest.Name("acme", 1), toytest.Tag("blue"))

	opened, err := open(t.Context(), toyWorld, log, dir, nil)
	require.NoError(t, err)
	require.Equal(t, uint64(5), opened.saved)
	require.Equal(t, digestOf(t, replay(t, w, log)), digestOf(t, opened))
	row, ok := TableOf(opened.View(), toytest.Kind).Get(toytest.Name("acme", 2))
	require.True(t, ok)
	was, _ := TableOf(w.View(), toytest.Kind).Get(toytest.Name("acme", 2))
	require.Equal(t, was.State, row.State)
	require.Equal(t, was.CreateTime, row.CreateTime)
	require.Equal(t, []string{string(toytest.Name("acme", 1)), string(toytest.Name("acme", 2)),
		string(toytest.Name("acme", 3))},
		names(TableOf(opened.View(), toytest.Kind).Oldest("acme"))[:3])
}

func TestAnEmptyWorldIsNotSaved(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, toyWorld().Save(dir))
	require.Empty(t, files(t, dir))
	w, err := open(t.Context(), toyWorld, eventlog.NewMemory(), filepath.Join(dir, "none"), nil)
	require.NoError(t, err)
	require.Zero(t, w.Position())
}

func TestTheNewestTwoSnapshotsAreKept(t *testing.T) {
	dir := t.TempDir()
	log, w := eventlog.NewMemory(), toyWorld()
	require.NoError(t, os.WriteFile(filepath.Join(dir, ".snapshot-123.tmp"), []byte("unfinished"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "notes.txt"), []byte("not ours"), 0o600))
	for i := range 12 {
		toytest.Add(t, log, toytest.Name("acme", i), toytest.Make("ball", 3))
		replay(t, w, log)
		saved, err := w.SaveEvery(dir, 3)
		require.NoError(t, err)
		require.Equal(t, i%3 == 2, saved)
	}
	require.Equal(t, []string{"notes.txt", "snapshot-00000000000000000009.jsonl", "snapshot-00000000000000000012.jsonl"},
		files(t, dir))
	saved, err := w.SaveEvery(dir, 1)
	require.NoError(t, err)
	require.False(t, saved, "no events since")
}

func TestADamagedSnapshotIsSkipped(t *testing.T) {
	flip := func(at func([]byte) int) func([]byte) []byte {
		return func(data []byte) []byte { data[at(data)] ^= 1; return data }
	}
	for name, damage := range map[string]func([]byte) []byte{
		"empty":        func([]byte) []byte { return nil },
		"cut":          func(data []byte) []byte { return data[:len(data)/2] },
		"no footer":    func(data []byte) []byte { return data[:bytes.LastIndex(data, []byte(`{"digest"`))] },
		"no last line": func(data []byte) []byte { return data[:len(data)-1] },
		"event id":     flip(func(data []byte) int { return bytes.Index(data, []byte("event-5")) }),
		"a value":      flip(func(data []byte) int { return bytes.Index(data, []byte("ball")) }),
		"a version":    flip(func(data []byte) int { return bytes.Index(data, []byte(`"version":1`)) + 10 }),
		"a line less": func(data []byte) []byte {
			lines := bytes.SplitAfter(data, []byte("\n"))
			return bytes.Join(append(lines[:1:1], lines[2:]...), nil)
		},
		"a checksum": flip(func(data []byte) int { return len(data) - 10 }),
	} {
		t.Run(name, func(t *testing.T) {
			logged, dir := captureLog(t), t.TempDir()
			log, w := threeToys(t)
			require.NoError(t, w.Save(dir))
			newest := filepath.Join(dir, files(t, dir)[0])
			data := testutil.ReadFile(t, newest)
			require.NoError(t, os.WriteFile(newest, damage(bytes.Clone(data)), 0o600))

			opened, err := open(t.Context(), toyWorld, log, dir, nil)
			require.NoError(t, err)
			require.Contains(t, logged.String(), "is damaged")
			require.Zero(t, opened.saved, "the whole log was folded")
			require.Equal(t, digestOf(t, w), digestOf(t, opened))

			// A damaged newer snapshot is skipped, and an older intact one is used.
			toytest.Add(t, log, toytest.Name("acme", 9), toytest.Make("ball", 3))
			require.NoError(t, w.Save(dir))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "snapshot-99999999999999999999.jsonl"), damage(bytes.Clone(data)),
				0o600))
			opened, err = open(t.Context(), toyWorld, log, dir, nil)
			require.NoError(t, err)
			require.Equal(t, uint64(5), opened.saved)
			require.Equal(t, digestOf(t, replay(t, w, log)), digestOf(t, opened))
		})
	}
}

func TestALogWithoutTheSnapshotsEventIsRefused(t *testing.T) {
	dir := t.TempDir()
	_, w := threeToys(t)
	require.NoError(t, w.Save(dir))

	short := eventlog.NewMemory()
	toytest.Add(t, short, toytest.Name("acme", 1), toytest.Make("ball", 3))
	_, err := open(t.Context(), toyWorld, short, dir, nil)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "ends with event event-5 at position 5, but the log ends at position 1")
	require.ErrorContains(t, err, "move the snapshots out of "+dir)

	other := eventlog.NewMemory()
	for i := range 7 {
		record, err := toytest.Kind.Encode(toytest.Make("ball", 3))
		require.NoError(t, err)
		_, err = other.Append(t.Context(),
			eventlog.Write{Event: eventlog.Event{Record: record, ID: "other", Name: toytest.Name("acme", i)}})
		require.NoError(t, err)
	}
	_, err = open(t.Context(), toyWorld, other, dir, nil)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "the log has event other at this position")
}

func TestASnapshotOfANewerFormatIsRefused(t *testing.T) {
	dir := t.TempDir()
	log, _ := threeToys(t)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "snapshot-00000000000000000005.jsonl"),
		[]byte(`{"format":2,"position":5,"eventId":"event-5"}`+"\n"), 0o600))
	_, err := open(t.Context(), toyWorld, log, dir, nil)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "has format 2, written by a newer version of anneal; this version reads up to 1")
}

func TestASnapshotOfAnotherSchemaIsSkipped(t *testing.T) {
	logged, dir := captureLog(t), t.TempDir()
	log, w := threeToys(t)
	require.NoError(t, w.Save(dir))
	larger := func() *World {
		return NewWorldOf(toytest.Kind,
			domain.NewKind("kites", map[string]domain.Event[toytest.Toy]{"kite.made.v1": toytest.Made{}}))
	}
	require.NotEqual(t, w.schema(), larger().schema())
	require.Equal(t, NewWorld().schema(), NewWorld().schema())
	opened, err := open(t.Context(), larger, log, dir, nil)
	require.NoError(t, err)
	require.Contains(t, logged.String(), "another version of anneal")
	require.Zero(t, opened.saved)
	require.Equal(t, uint64(5), opened.Position())

	_, err = open(t.Context(), larger, eventlog.NewMemory(), dir, nil)
	require.ErrorContains(t, err, "the log lost events", "its checkpoint is still checked against the log")
}

func TestLoadAndVerify(t *testing.T) {
	dir := t.TempDir()
	log, w := eventlog.NewMemory(), NewWorld()
	record, err := domain.Accounts.Encode(domain.AccountCreated{AccountSpec: domain.AccountSpec{Email: "a@example.com"}})
	require.NoError(t, err)
	_, err = log.Append(t.Context(),
		eventlog.Write{Event: eventlog.Event{Record: record, ID: "first", Name: "accounts/acme", Time: toytest.Epoch}})
	require.NoError(t, err)
	empty, err := Load(dir)
	require.NoError(t, err)
	require.Zero(t, empty.Position())
	require.NoError(t, replay(t, w, log).Save(dir))
	loaded, err := Load(dir)
	require.NoError(t, err)
	opened, err := Open(t.Context(), log, dir)
	require.NoError(t, err)
	verified, err := Verify(t.Context(), log, 1)
	require.NoError(t, err)
	require.Equal(t, verified, digestOf(t, loaded))
	require.Equal(t, verified, digestOf(t, opened))
	require.Equal(t, 1, verified.Tables["accounts"].Rows)
	require.Equal(t, "first", verified.EventID)
	_, err = Verify(t.Context(), log, 2)
	require.ErrorContains(t, err,
		"the log ends at position 1 and cannot be verified up to position 2: verify it up to an earlier position")
}

// TestSnapshotAndTailIsTheWholeFold checks that folding the rest of the log into a snapshot of any
// position gives the same world as folding the whole log.
func TestSnapshotAndTailIsTheWholeFold(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		dir := t.TempDir()
		log, w := eventlog.NewMemory(), toyWorld()
		for range rapid.IntRange(1, 30).Draw(r, "before") {
			addRandom(t, r, log, w)
		}
		require.NoError(t, w.Save(dir))
		for range rapid.IntRange(0, 10).Draw(r, "after") {
			addRandom(t, r, log, w)
		}
		opened, err := open(t.Context(), toyWorld, log, dir, nil)
		require.NoError(t, err)
		whole, err := verify(t.Context(), toyWorld(), log, 0)
		require.NoError(t, err)
		require.Equal(t, whole, digestOf(t, opened))
		require.Equal(t, whole, digestOf(t, w))
		for account := range map[string]bool{"a": true, "b": true} {
			a, b := TableOf(opened.View(), toytest.Kind), TableOf(w.View(), toytest.Kind)
			require.Equal(t, b.Count(account), a.Count(account))
			require.Equal(t, names(b.Newest(account)), names(a.Newest(account)))
			require.Equal(t, names(b.In(account)), names(a.In(account)))
		}
	})
}

// TestEveryStateSurvivesItsSnapshot checks that encoding these states as JSON and decoding them
// preserves all fields: none is unexported, excluded, or hidden by another field.
func TestEveryStateSurvivesItsSnapshot(t *testing.T) {
	survives[domain.Account](t)
	survives[domain.APIKey](t)
	survives[domain.Secret](t)
	survives[domain.Model](t)
	survives[domain.Dataset](t)
	survives[domain.Evaluator](t)
	survives[domain.SupervisedJob](t)
	survives[domain.DPOJob](t)
	survives[domain.ReinforcementJob](t)
	survives[domain.TrainerJob](t)
	survives[domain.DeploymentShape](t)
	survives[domain.Deployment](t)
	survives[domain.Node](t)
}

func survives[S domain.State](t *testing.T) {
	var before, after S
	fillValue(t, reflect.ValueOf(&before).Elem(), reflect.TypeFor[S]().String())
	data := testutil.Marshal(t, before)
	require.NoError(t, json.Unmarshal(data, &after))
	require.Equal(t, before, after)
}

// fillValue recursively sets v and its fields and elements to non-zero values. at is the path to v,
// for messages.
func fillValue(t *testing.T, v reflect.Value, at string) {
	require.True(t, v.CanSet(), "%s is not exported: a snapshot cannot contain it", at)
	switch v.Kind() {
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(toytest.Epoch.Add(123 * time.Nanosecond)))
			return
		}
		for i := range v.NumField() {
			fillValue(t, v.Field(i), at+"."+v.Type().Field(i).Name)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fillValue(t, v.Elem(), at)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fillValue(t, v.Index(0), at)
		fillValue(t, v.Index(1), at)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fillValue(t, key, at)
		fillValue(t, value, at)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString(strings.ToLower(at))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(0.25)
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Uint:
		v.SetUint(7)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	default:
		require.Fail(t, "a state must not contain "+v.Kind().String(), at)
	}
}

// TestLoadOfManyBatches checks that a snapshot of several batches is loaded completely, and that damage in any
// batch is found.
func TestLoadOfManyBatches(t *testing.T) {
	w, dir := toyWorld(), t.TempDir()
	for i := range 6_000 {
		record, err := toytest.Kind.Encode(toytest.Make(strings.Repeat("x", i%200), int64(i)))
		require.NoError(t, err)
		require.NoError(t, w.Apply(eventlog.Event{Record: record, ID: fmt.Sprint("event-", i),
			Name: toytest.Name("a", i*7919%6_000), Position: uint64(i + 1),
			Time: toytest.Epoch.Add(time.Duration(i%97) * time.Second)}))
	}
	require.NoError(t, w.Save(dir))
	reload := func() *World {
		loaded, err := startLoading(dir, toyWorld).load(func(string, eventlog.Checkpoint) error { return nil },
			func(eventlog.Checkpoint) error { return nil })
		require.NoError(t, err)
		return loaded
	}
	loaded := reload()
	want, err := w.View().Digest()
	require.NoError(t, err)
	have, err := loaded.View().Digest()
	require.NoError(t, err)
	require.Equal(t, want, have)
	toys, loadedToys := TableOf(w.View(), toytest.Kind), TableOf(loaded.View(), toytest.Kind)
	require.Equal(t, names(toys.Newest("a")), names(loadedToys.Newest("a")))
	checkBlocks(t, loadedToys, "a")

	paths, err := snapshots(dir)
	require.NoError(t, err)
	intact, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	require.Greater(t, len(intact), 4*loadBatch)
	for at := 1_000; at < len(intact); at += loadBatch {
		for _, damaged := range [][]byte{intact[:at], bytes.Join([][]byte{intact[:at], intact[at+1:]}, []byte("\n")),
			bytes.Join([][]byte{intact[:at], intact[at+1:]}, []byte{intact[at] ^ 1})} {
			require.NoError(t, os.WriteFile(paths[0], damaged, 0o600))
			require.Zero(t, reload().Position(), "damaged at %d", at)
		}
	}
}

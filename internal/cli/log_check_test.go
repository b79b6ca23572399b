package cli

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
	"anneal/internal/testutil"
)

// A textLog is a log of n events whose data contain a text, so that two texts make a fork.
type textLog struct {
	text string
	n    uint64
	from uint64 // if not 0, the data contain fork from this position on
	fork string
}

func (l textLog) message(position uint64) integrity.Message {
	if l.from > 0 && position >= l.from {
		l.text = l.fork
	}
	return integrity.NewMessage(position, "events.acme.deployments.d1",
		[]integrity.Attribute{{Name: "ce-actor", Value: "accounts/acme/apiKeys/k1"}}, fmt.Append(nil, l.text, position))
}

func (l textLog) Last(context.Context) (integrity.Checkpoint, error) {
	return integrity.Checkpoint{Position: l.n}, nil
}

func (l textLog) Each(_ context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	for position := after + 1; position <= upTo; position++ {
		if err := each(l.message(position)); err != nil {
			return err
		}
	}
	return nil
}

func (l textLog) At(_ context.Context, position uint64) (integrity.Message, error) {
	return l.message(position), nil
}

func (textLog) SaltKey(context.Context, string) ([]byte, error) {
	return make([]byte, 32), nil
}

// files writes the checkpoint of the log, and a bundle of an event that proves growth since a size.
func (l textLog) files(t *testing.T, position, since uint64) (checkpoint, bundle, key string) {
	dir := t.TempDir()
	lines, key := l.prove(t, dir, since, position)
	bundle = filepath.Join(dir, "bundle")
	require.NoError(t, os.WriteFile(bundle, lines[0], 0o600))
	return filepath.Join(dir, "checkpoint"), bundle, key
}

// prove publishes the log in a directory, and returns the bundles of events.
func (l textLog) prove(t *testing.T, dir string, since uint64, positions ...uint64) (lines [][]byte, key string) {
	signer, err := transparency.NewSigner([]byte("secret"))
	require.NoError(t, err)
	p := transparency.NewPublisher(transparency.Options{Dir: dir, Messages: l, Keys: l, Signer: signer})
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	require.NoError(t, p.WaitFor(ctx, l.n))
	for _, position := range positions {
		b, err := p.Prove(ctx, position, since, true)
		require.NoError(t, err)
		data, err := b.Marshal()
		require.NoError(t, err)
		lines = append(lines, data)
	}
	stop()
	<-done
	return lines, signer.Key()
}

// TestRewrittenLogIsFound is the auditor's case: a checkpoint of last week, and a bundle of a log
// that was rewritten since, with all signatures of the operator.
func TestRewrittenLogIsFound(t *testing.T) {
	lastWeek, _, key := textLog{text: "a", n: 10}.files(t, 1, 0)
	_, honest, _ := textLog{text: "a", n: 20}.files(t, 5, 10)
	_, rewritten, _ := textLog{text: "b", n: 20}.files(t, 5, 10)
	_, other, _ := textLog{text: "a", n: 20}.files(t, 5, 9)

	report, err := (&logCheck{key: key, since: lastWeek}).run(honest)
	require.NoError(t, err)
	require.Equal(t, "accounts/acme/apiKeys/k1", report.Events[0].Attributes["ce-actor"])
	require.EqualValues(t, 10, report.Since.Size)
	_, err = (&logCheck{key: key, since: lastWeek}).run(rewritten)
	require.ErrorContains(t, err, "REWRITTEN")
	_, err = (&logCheck{key: key, since: lastWeek}).run(other)
	require.ErrorContains(t, err, "does not prove that the log still has the 10 events")
	_, err = (&logCheck{key: key}).run(rewritten)
	require.NoError(t, err, "by itself it is consistent: only the earlier checkpoint shows the fork")

	both := filepath.Join(t.TempDir(), "both")
	first, err := os.ReadFile(honest)
	require.NoError(t, err)
	second, err := os.ReadFile(rewritten)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(both, append(first, second...), 0o600))
	_, err = (&logCheck{key: key}).run(both)
	require.ErrorContains(t, err, "line 2")
	_, err = (&logCheck{}).run(both)
	require.ErrorContains(t, err, "--key is required")
}

// TestCheckpointsOfOneFile checks files whose bundles have two checkpoints: two of one size and
// different roots are two histories, and those of different sizes must be linked by a proof.
func TestCheckpointsOfOneFile(t *testing.T) {
	since, _, key := textLog{text: "a", n: 10}.files(t, 1, 0)
	path := filepath.Join(t.TempDir(), "account.proof")
	one := func(l textLog, since, position uint64) []byte {
		lines, _ := l.prove(t, t.TempDir(), since, position)
		return lines[0]
	}
	check := func(since string, lines ...[]byte) (checkReport, error) {
		require.NoError(t, os.WriteFile(path, bytes.Join(lines, nil), 0o600))
		return (&logCheck{key: key, since: since}).run(path)
	}
	// The data of the first event are the same in all logs, so that their events 1 and 2 are consistent.
	first, fork := textLog{text: "a", n: 11}, textLog{text: "a", n: 12}
	fork.from, fork.fork = 5, "b"

	report, err := check(since, one(first, 10, 1), one(textLog{text: "a", n: 12}, 11, 2))
	require.NoError(t, err, "linked")
	require.EqualValues(t, 12, report.Checkpoint.Size)
	require.EqualValues(t, 10, report.Since.Size)
	require.Empty(t, report.Unlinked)

	_, err = check("", one(textLog{text: "a", n: 12}, 0, 1), one(fork, 0, 2))
	require.ErrorContains(t, err, "line 2: the log signed two different histories: its first 12 events have root hash")
	_, err = check("", one(textLog{text: "a", n: 11}, 0, 1), one(fork, 11, 2))
	require.ErrorContains(t, err, "line 2: the log signed two different histories: its first 11 events have root hash",
		"the proof of growth begins with another root than the checkpoint of line 1")

	for what, log := range map[string]textLog{"of the same log": {text: "a", n: 12}, "fork": fork} {
		last := one(log, 0, 2)
		report, err = check("", one(first, 10, 1), last)
		require.NoError(t, err, what)
		require.EqualValues(t, 12, report.Checkpoint.Size)
		require.Len(t, report.Unlinked, 1, what)
		require.EqualValues(t, 11, report.Unlinked[0].Size)
		require.Nil(t, report.Since, "the newest checkpoint is not linked with any other")
		var out strings.Builder
		report.print(&out)
		require.Contains(t, out.String(), "does not prove that the newest checkpoint has all events of 1 earlier ones", what)
		_, err = check(since, one(first, 10, 1), last)
		require.ErrorContains(t, err,
			"does not prove that the newest checkpoint in it, of 12 events, still has the 10 events", what)
	}
}

// TestChangedFilesOfAnAccountAreFound verifies the file of an account's events with one changed bit, and
// without an event, with swapped events and with repeated events: 1,000 files of each kind. Only a file
// that ends early is valid, because the events after its last one may be newer: the report states which
// is the last event.
func TestChangedFilesOfAnAccountAreFound(t *testing.T) {
	const n, files = 8, 1000
	lines, key := textLog{text: "a", n: n}.prove(t, t.TempDir(), 0, 1, 2, 3, 4, 5, 6, 7, 8)
	path := filepath.Join(t.TempDir(), "account.proof")
	check := func(lines [][]byte) (checkReport, error) {
		require.NoError(t, os.WriteFile(path, bytes.Join(lines, nil), 0o600))
		return (&logCheck{key: key}).run(path)
	}
	report, err := check(lines)
	require.NoError(t, err)
	require.Len(t, report.Events, n)
	random := testutil.Random(t)
	for kind, change := range map[string]func([][]byte) [][]byte{
		"flipped bit": func(all [][]byte) [][]byte {
			i := random.IntN(n)
			all[i] = bytes.Clone(all[i])
			all[i][random.IntN(len(all[i])-1)] ^= 1 << random.IntN(8)
			return all
		},
		"missing": func(all [][]byte) [][]byte {
			first := random.IntN(n - 2) // the last two remain
			return slices.Delete(all, first, first+1+random.IntN(n-2-first))
		},
		"swapped": func(all [][]byte) [][]byte {
			i := random.IntN(n)
			j := (i + 1 + random.IntN(n-1)) % n
			all[i], all[j] = all[j], all[i]
			return all
		},
		"repeated": func(all [][]byte) [][]byte {
			return slices.Insert(all, random.IntN(n+1), all[random.IntN(n)])
		},
	} {
		found := 0
		for range files {
			if _, err := check(change(slices.Clone(lines))); err != nil {
				found++
			}
		}
		require.Equal(t, files, found, kind)
	}
	report, err = check(lines[:5])
	require.NoError(t, err)
	require.EqualValues(t, 5, report.Events[4].Sequence)
	report, err = check(lines[6:7])
	require.NoError(t, err, "one bundle proves one event")
	require.EqualValues(t, 7, report.Events[0].Sequence)
}

// TestOnlyVerifiedBundlesAreInvalid checks that only a bundle that was verified is called invalid.
func TestOnlyVerifiedBundlesAreInvalid(t *testing.T) {
	_, bundle, key := textLog{text: "a", n: 20}.files(t, 5, 10)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	for line, invalid := range map[string]bool{
		bundle:                           false,
		bundle + " --key wrong":          false,
		bundle + ".missing --key " + key: false,
		bundle + " --key " + key + " --since " + bundle + ".missing": false,
		empty + " --key " + key: true,
	} {
		c := NewRoot("test")
		c.SetArgs(append([]string{"log", "check"}, strings.Fields(line)...))
		err := c.Execute()
		require.Error(t, err, line)
		require.Equal(t, invalid, strings.Contains(err.Error(), "NOT valid"), "%s: %v", line, err)
	}
}

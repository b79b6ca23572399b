package server

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/metering"
)

// uncounted are the entries of the data directory that do not grow with what the server stores.
var uncounted = []string{"context.json", "operator.json", "version", "keys", "lock",
	"control-plane", "nats.mark", "nats.port", "rebuilds.json", "worker"}

// TestDirectoriesAreInTheDiskBudget writes to every directory of the data directory, first on a disk with
// space and then on one with less free space than any class of writes must leave. In the first case
// each directory grows, in the second none does. A directory that a later version adds must be written to
// here, and leave space for the log.
func TestDirectoriesAreInTheDiskBudget(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		before := directorySizes(t, dir)
		require.NoError(t, writeEverywhere(ctx, s, 0))
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
		after := directorySizes(t, dir)
		for _, directory := range slices.Sorted(maps.Keys(after)) {
			if !slices.Contains(uncounted, directory) {
				assert.Greater(t, after[directory], before[directory], "%s does not grow: write to it in writeEverywhere",
					directory)
			}
		}

		restore := disk.On(dir).Simulate(uint64(disk.Events) - 1)
		defer restore()
		before = directorySizes(t, dir)
		require.Error(t, writeEverywhere(ctx, s, 1))
		after = directorySizes(t, dir)
		for directory, size := range after {
			assert.LessOrEqual(t, size, before[directory], "%s grows although the disk is nearly full", directory)
		}
		restore()
		require.NoError(t, writeEverywhere(ctx, s, 2))
	}))
}

// TestTreeLeavesSpaceForTheLog checks that the log continues when the tree may not grow, and that the
// tree continues when there is space again.
func TestTreeLeavesSpaceForTheLog(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	require.NoError(t, serving(t, dir, func(ctx context.Context, s *Server) {
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
		restore := disk.On(dir).Simulate(uint64(disk.Files) - 1)
		defer restore()
		size := directorySizes(t, dir)["tree"]
		require.NoError(t, createAccount(ctx, s, "acme"))
		require.Eventually(t, func() bool {
			_, _, err := s.proofs.Checkpoint()
			return err != nil && strings.Contains(err.Error(), "the disk is nearly full")
		}, time.Minute, 10*time.Millisecond)
		require.Equal(t, size, directorySizes(t, dir)["tree"])
		restore()
		require.NoError(t, s.proofs.WaitFor(ctx, s.world.Position()))
	}))
}

func createAccount(ctx context.Context, s *Server, id string) error {
	return bootstrapDo(ctx, s, domain.Accounts, domain.NewName("", "accounts", id),
		domain.CreateAccount{AccountSpec: domain.AccountSpec{DisplayName: id, AccountType: domain.Enterprise}})
}

// writeEverywhere makes the server write to each directory of its data directory. round makes the
// content of the calls differ. The error is the last one.
func writeEverywhere(ctx context.Context, s *Server, round int) (last error) {
	note := func(err error) {
		if err != nil {
			last = err
		}
	}
	for i := range 130 { // two frames of the archive
		if note(createAccount(ctx, s, fmt.Sprintf("a%d-%d", round, i))); last != nil {
			break
		}
	}
	_, err := s.blobs.Put(ctx, fmt.Sprintf("datasets/default/e%d/1-t/rows.jsonl", round),
		bytes.NewReader(make([]byte, 1000)))
	note(err)
	note(s.meter.Record(metering.Record{Time: time.Now(), Request: usageRequest(round), Kind: metering.Chat,
		Account: "default", Key: "accounts/default/apiKeys/k", Deployment: "accounts/default/deployments/d", Model: "m",
		Complete: true}))
	claim, err := s.idempotency.Claim(ctx, fmt.Sprintf("default.key-%d", round), []byte("digest"), time.Now(), time.Minute)
	if note(err); err == nil {
		note(s.idempotency.Store(ctx, claim, []byte("response")))
	}
	sealer, err := s.sealer(ctx)
	if note(err); err == nil {
		_, err = sealer.Seal(ctx, corpusSecret(round), []byte("value"))
		note(err)
	}
	note(s.world.Save(s.dir.Path("snapshots")))
	return last
}

// directorySizes returns the sizes of the files in each entry of a directory.
func directorySizes(t *testing.T, dir string) map[string]int64 {
	sizes := map[string]int64{}
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, entry := range entries {
		require.NoError(t, filepath.WalkDir(filepath.Join(dir, entry.Name()), func(_ string, f fs.DirEntry, err error) error {
			if os.IsNotExist(err) {
				return nil // the server replaces files
			}
			if err == nil && f.Type().IsRegular() {
				if info, err := f.Info(); err == nil {
					sizes[entry.Name()] += info.Size()
				}
			}
			return err
		}))
	}
	return sizes
}

package natsserver

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/internal/testutil"
)

// damageBlock damages the content of a block at random: it flips a bit, clears a range, cuts the
// end or deletes the file. It returns the damaged content. exists is false when the file is
// deleted.
func damageBlock(random *rand.Rand, content []byte) (damaged []byte, exists bool) {
	damaged, at := bytes.Clone(content), random.IntN(len(content))
	switch random.IntN(6) {
	case 0, 1, 2:
		damaged[at] ^= 1 << random.IntN(8)
	case 3:
		clear(damaged[at:min(len(content), at+1+random.IntN(300_000))])
	case 4:
		return damaged[:at], true
	case 5:
		return nil, false
	}
	return damaged, true
}

// lostBy returns the positions of a block's records that are not in its damaged content. first is
// the position of the block's first record.
func lostBy(content, damaged []byte, first uint64) (lost []uint64) {
	ends := recordEnds(content)
	for i := range len(ends) - 1 {
		from, to := ends[i], ends[i+1]
		if to > int64(len(damaged)) || !bytes.Equal(content[from:to], damaged[from:to]) {
			lost = append(lost, first+uint64(i))
		}
	}
	return lost
}

// TestLossesAreExact damages blocks of a log without a mirror at random. It checks that the report
// of the repair lists exactly the positions of the records that the damage touched, and that the
// error of the start names the first of them. The environment variable ANNEAL_CORRUPTIONS is the
// number of trials, and ANNEAL_SEED is the seed of the damage.
func TestLossesAreExact(t *testing.T) {
	trials := 40
	if testing.Short() {
		trials = 5
	}
	trials = testutil.Variable(t, "ANNEAL_CORRUPTIONS", trials)
	random := testutil.Random(t)
	dir := stopped(t, 200)
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "jetstream", "READERS")))
	paths := blockFiles(t, dir)
	whole, firsts := make([][]byte, len(paths)), make([]uint64, len(paths))
	next := uint64(1)
	for i := range paths {
		paths[i] = filepath.Join(integrity.BlockDir(dir, "CONTROL", eventlog.Stream), fmt.Sprintf("%d.blk", i+1))
		content := testutil.ReadFile(t, paths[i])
		whole[i], firsts[i] = content, next
		next += uint64(len(recordEnds(content)) - 1)
	}
	require.Equal(t, uint64(201), next)
	for trial := range trials {
		n := random.IntN(len(paths))
		damaged, exists := damageBlock(random, whole[n])
		want := lostBy(whole[n], damaged, firsts[n])
		if len(want) == 0 { // the cleared range had only zeros before, so nothing was lost
			continue
		}
		if exists {
			require.NoError(t, os.WriteFile(paths[n], damaged, 0o600))
		} else {
			require.NoError(t, os.Remove(paths[n]))
		}
		what := fmt.Sprintf("trial %d, block %d", trial, n+1)

		_, err := Start(Options{Dir: dir})
		require.True(t, integrity.IsDamaged(err), "%s: %v", what, err)
		require.Regexp(t, fmt.Sprintf(`no valid events at positions? %d\b`, want[0]), err.Error(), what)
		report, err := integrity.Repair(integrity.RepairOptions{Dir: dir, Now: time.Now()})
		require.NoError(t, err, what)
		require.False(t, report.Changed, what)
		var lost []uint64
		for _, gap := range report.Lost {
			for position := gap.First; position <= gap.Last; position++ {
				lost = append(lost, position)
			}
		}
		require.Equal(t, want, lost, what)
		require.NoError(t, os.WriteFile(paths[n], whole[n], 0o600))
	}
}

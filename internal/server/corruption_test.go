package server

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/integrity"
	"anneal/internal/datadir"
	"anneal/internal/node"
	"anneal/internal/testutil"
	"anneal/projections"
)

// A corpus is the data directory of a stopped server, and its content.
type corpus struct {
	dir    string
	digest projections.Digest
	sealed []domain.Sealed
	blobs  map[string][]byte // by key
}

// corpusSecret returns the name of the secret that a round of makeCorpus creates.
func corpusSecret(round int) domain.Name {
	return domain.Name(fmt.Sprintf("accounts/default/secrets/token-%d", round))
}

func corpusFlags(dir string) Flags {
	flags := DefaultFlags()
	flags.Data, flags.Listen, flags.worker, flags.Node.Engine.Speech = dir, "127.0.0.1:0", false, node.NoSpeech
	return flags
}

// serving starts a server in a directory, and stops it after do.
func serving(t *testing.T, dir string, do func(ctx context.Context, s *Server)) error {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	s, err := Start(ctx, corpusFlags(dir), slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	do(ctx, s)
	stop()
	require.NoError(t, s.Wait(ctx))
	return nil
}

// makeCorpus fills a directory in two rounds with two blocks of events, two snapshots, sealed
// values, uploaded files, usage records, responses under idempotency keys, and complete mirrors for
// readers.
func makeCorpus(t *testing.T) (c corpus) {
	c.dir = filepath.Join(t.TempDir(), "data")
	c.blobs = map[string][]byte{}
	for key, size := range map[string]int{"datasets/default/e1/1-t/rows.jsonl": 5000,
		"models/default/e2/1-t/model.safetensors": 2<<20 + 77,
		"models/default/e2/1-t/config.json":       300, "evaluators/default/e3/builds/1/main.py": 900,
		"jobs/default/e4/metrics.jsonl": 0} {
		c.blobs[key] = make([]byte, size)
		_, _ = rand.NewChaCha8([32]byte([]byte(strings.Repeat(key, 32)))).Read(c.blobs[key])
	}
	for round := range 2 {
		err := serving(t, c.dir, func(ctx context.Context, s *Server) {
			for i := range 20 {
				name := domain.NewName("", "accounts", fmt.Sprintf("c%d-%d", round, i))
				spec := domain.AccountSpec{DisplayName: strings.Repeat("x", 60), AccountType: domain.Enterprise}
				require.NoError(t, bootstrapDo(ctx, s, domain.Accounts, name, domain.CreateAccount{AccountSpec: spec}))
			}
			for key, content := range c.blobs { // the second round overwrites the first one's blobs
				if strings.Contains(key, "/e5") {
					continue // it is in the bundle
				}
				_, err := s.blobs.Put(ctx, key, bytes.NewReader(content))
				require.NoError(t, err)
			}
			require.NoError(t, s.blobs.PutAll(ctx, map[string][]byte{ // a bundle
				"models/default/e5-attempt-1/config.json": []byte("{}"),
				"models/default/e5-attempt-1/weights":     bytes.Repeat([]byte("weights"), 2000),
				"jobs/default/e5/trainer-1.log":           []byte("the training is complete\n")}))
			for _, root := range blobs.Roots() { // including what a server stores by itself
				for file, err := range s.blobs.List(ctx, root) {
					require.NoError(t, err)
					c.blobs[file.Key], err = readBlob(ctx, s, file.Key)
					require.NoError(t, err)
				}
			}
			require.NoError(t, storeRecords(ctx, s, round))
			sealer, err := s.sealer(ctx)
			require.NoError(t, err)
			sealed, err := sealer.Seal(ctx, corpusSecret(round), []byte("value"))
			require.NoError(t, err)
			c.sealed = append(c.sealed, sealed)
			require.NoError(t, bootstrapDo(ctx, s, domain.Secrets, corpusSecret(round),
				domain.CreateSecret{KeyName: "TOKEN", Value: sealed}))
			c.digest, err = s.world.View().Digest()
			require.NoError(t, err)
			require.Eventually(t, func() bool {
				operator, err := datadir.ReadContext(s.dir.Path("operator.json"))
				if err != nil || operator.NATSURL == "" {
					return false
				}
				_, err = verifyRunning(ctx, operator)
				return err == nil
			}, time.Minute, 50*time.Millisecond)
		})
		require.NoError(t, err)
	}
	return c
}

// stores returns the files of a directory that cannot be recreated.
func (c corpus) stores(t *testing.T) (files []string) {
	require.NoError(t, filepath.WalkDir(c.dir, func(path string, entry fs.DirEntry, err error) error {
		rel, _ := filepath.Rel(c.dir, path)
		if entry.IsDir() && (rel == "cache" || rel == "worker") {
			return filepath.SkipDir
		}
		if err == nil && entry.Type().IsRegular() && !strings.HasPrefix(entry.Name(), "lock") {
			files = append(files, rel)
		}
		return err
	}))
	return files
}

// damageFile damages one file at random, and returns a description of the damage.
func damageFile(t *testing.T, random *rand.Rand, path string) string {
	content := testutil.ReadFile(t, path)
	kind := random.IntN(4)
	if len(content) == 0 {
		kind = 3
	}
	at := 0
	if len(content) > 0 {
		at = random.IntN(len(content))
	}
	switch kind {
	case 0:
		bit := byte(1) << random.IntN(8)
		content[at] ^= bit
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return fmt.Sprintf("bit %#x of byte %d flipped", bit, at)
	case 1:
		end := min(len(content), at+1+random.IntN(4096))
		clear(content[at:end])
		require.NoError(t, os.WriteFile(path, content, 0o600))
		return fmt.Sprintf("bytes %d to %d zero", at, end)
	case 2:
		require.NoError(t, os.Truncate(path, int64(at)))
		return fmt.Sprintf("cut to %d bytes of %d", at, len(content))
	}
	require.NoError(t, os.Remove(path))
	return "deleted"
}

func readBlob(ctx context.Context, s *Server, key string) ([]byte, error) {
	content, err := s.blobs.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(content)
	return data, errors.Join(err, content.Close())
}

// readBlobs reads every file. Each must be unchanged, or its read must fail with an error that
// names the file. silent describes a file for which neither holds; refused is the number of files
// whose read failed.
func (c corpus) readBlobs(ctx context.Context, s *Server) (silent string, refused int) {
	for key, was := range c.blobs {
		is, err := readBlob(ctx, s, key)
		switch {
		case err == nil && sha256.Sum256(is) != sha256.Sum256(was):
			return key + " is read with other content", refused
		case err != nil && !strings.Contains(err.Error(), key):
			return fmt.Sprintf("the error about %s does not name it: %v", key, err), refused
		case err != nil:
			refused++
		}
	}
	return "", refused
}

// sound returns how a running server differs from the corpus; "" if it does not.
func (c corpus) sound(ctx context.Context, s *Server) string {
	found, err := projections.Verify(ctx, s.events.Log(), c.digest.Position)
	if err != nil || found.SHA256 != c.digest.SHA256 {
		return fmt.Sprintf("the log differs: position %d, %v", found.Position, err)
	}
	v := s.world.View()
	served, err := v.Digest()
	if err != nil {
		return err.Error()
	}
	if again, err := projections.Verify(ctx, s.events.Log(), v.Position); err != nil || again.SHA256 != served.SHA256 {
		return fmt.Sprintf("the served state differs from the log: %v", err)
	}
	operator, err := datadir.ReadContext(s.dir.Path("operator.json"))
	if err != nil {
		return err.Error()
	}
	if mirror, err := verifyRunning(ctx, operator); err != nil || !mirror.Equal {
		return fmt.Sprintf("the readers' mirror differs: %v", err)
	}
	sealer, err := s.sealer(ctx)
	if err != nil {
		return err.Error()
	}
	for _, name := range []string{"blobs", "nodes", "pepper"} {
		was, err := datadir.Dir(c.dir).Key(name)
		if err != nil {
			return err.Error()
		}
		if is, err := s.dir.Key(name); err != nil || string(is) != string(was) {
			return fmt.Sprintf("keys/%s differs: %v", name, err)
		}
	}
	for i, sealed := range c.sealed {
		value, err := sealer.Open(ctx, corpusSecret(i), sealed)
		if err != nil || value.Reveal() != "value" {
			return fmt.Sprintf("cannot open sealed value %d: %v", i, err)
		}
	}
	if lacking := lackingUsage(ctx, s, 2*corpusRecords); lacking != "" {
		return lacking
	}
	return lackingResponses(ctx, s, 2*corpusRecords)
}

// TestCorruption checks that after any damage to the directory of a stopped server, the server
// either starts with all data, or reports the damage and does not start. ANNEAL_CORRUPTIONS is the
// number of trials; ANNEAL_SEED selects the damage.
func TestCorruption(t *testing.T) {
	trials := 60
	if testing.Short() {
		trials = 10
	}
	trials = testutil.Variable(t, "ANNEAL_CORRUPTIONS", trials)
	random := testutil.Random(t)
	c := makeCorpus(t)
	files := c.stores(t)
	var vital []string // the few files with most of the data, one of which every other trial damages
	for _, file := range files {
		if strings.Contains(file, "EVENTS/msgs") ||
			slices.Contains([]string{"nats.mark", "snapshots", "datakeys", "keys", "blobs"}, strings.Split(file, "/")[0]) {
			vital = append(vital, file)
		}
	}
	counts := map[string]int{}
	for trial := range trials {
		dir := filepath.Join(t.TempDir(), "data")
		require.NoError(t, os.CopyFS(dir, os.DirFS(c.dir)))
		require.NoError(t, os.Chmod(datadir.Dir(dir).RingPath(), 0o600))
		file := files[random.IntN(len(files))]
		if trial%2 == 0 {
			file = vital[random.IntN(len(vital))]
		}
		what := file + ": " + damageFile(t, random, filepath.Join(dir, file))
		outcome := c.try(t, dir, what)
		counts[outcome]++
		t.Logf("%-9s %s", outcome, what)
		require.NoError(t, os.RemoveAll(dir))
	}
	t.Logf("%d trials: %v", trials, counts)
}

// try starts the server in a damaged directory, repairs the log where the error advises a repair,
// and returns a word for the outcome. what describes the damage.
func (c corpus) try(t *testing.T, dir, what string) (outcome string) {
	lacking, refused := "", 0
	err := serving(t, dir, func(ctx context.Context, s *Server) {
		if lacking, refused = c.readBlobs(ctx, s); lacking == "" {
			lacking = c.sound(ctx, s)
		}
	})
	if refused > 0 && !strings.HasPrefix(what, "blobs"+string(filepath.Separator)) {
		t.Errorf("%s: %d undamaged files are refused", what, refused)
	}
	if err == nil {
		if lacking != "" {
			t.Errorf("%s: the server started, but %s", what, lacking)
			return "SILENT"
		}
		if refused > 0 {
			return "refused"
		}
		return "harmless"
	}
	if !integrity.IsDamaged(err) {
		named := slices.ContainsFunc(strings.Split(strings.SplitN(what, ":", 2)[0], "/"),
			func(part string) bool { return strings.Contains(err.Error(), part) })
		if !named {
			t.Errorf("%s: the error does not name it: %v", what, err)
		}
		return "refused"
	}
	report, err := Repair(datadir.Dir(dir), false)
	if err != nil {
		t.Errorf("%s: repair: %v", what, err)
		return "refused"
	}
	if !report.Intact() {
		return "refused"
	}
	if err := serving(t, dir, func(ctx context.Context, s *Server) { lacking = c.sound(ctx, s) }); err != nil ||
		lacking != "" {
		t.Errorf("%s: after the repair: %v %s", what, err, lacking)
	}
	return "repaired"
}

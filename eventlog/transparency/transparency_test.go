package transparency_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"

	"anneal/domain"
	"anneal/eventlog/integrity"
	"anneal/eventlog/transparency"
	"anneal/internal/testutil"
)

// A messages is a log in memory that implements Messages.
type messages struct {
	mu  sync.Mutex
	all []integrity.Message
}

// message returns the n-th event of a log of three accounts.
func message(position uint64) integrity.Message {
	account := "acme"
	if position%3 == 0 {
		account = fmt.Sprintf("other-%d", position%2)
	}
	subject := fmt.Sprintf("events.%s.datasets.d%d", account, position%7)
	return integrity.NewMessage(position, subject, []integrity.Attribute{
		{Name: "ce-actor", Value: "accounts/" + account + "/apiKeys/k1"},
		{Name: "ce-id", Value: "id-" + strconv.FormatUint(position, 10)},
		{Name: "ce-type", Value: "dataset.updated.v1"},
	}, fmt.Appendf(nil, `{"displayName":"<%d>"}`, position))
}

func (l *messages) grow(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for range n {
		l.all = append(l.all, message(uint64(len(l.all)+1)))
	}
}

func (l *messages) Last(context.Context) (integrity.Checkpoint, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return integrity.Checkpoint{Position: uint64(len(l.all))}, nil
}

func (l *messages) Each(_ context.Context, after, upTo uint64, each func(integrity.Message) error) error {
	l.mu.Lock()
	all := slices.Clone(l.all)
	l.mu.Unlock()
	for _, m := range all[after:upTo] {
		if err := each(m); err != nil {
			return err
		}
	}
	return nil
}

func (l *messages) At(_ context.Context, position uint64) (integrity.Message, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if position == 0 || position > uint64(len(l.all)) {
		return integrity.Message{}, domain.Errorf(domain.NotFound, "no event %d", position)
	}
	return l.all[position-1], nil
}

// A saltKeys stores salt keys in memory and implements SaltKeys.
type saltKeys struct {
	mu   sync.Mutex
	keys map[string][]byte
}

func (k *saltKeys) SaltKey(_ context.Context, account string) ([]byte, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if _, ok := k.keys[account]; !ok {
		k.keys[account] = bytes.Repeat([]byte{byte(len(k.keys) + 1)}, 32)
	}
	return k.keys[account], nil
}

// An installation has a log and its keys.
type installation struct {
	log    *messages
	keys   *saltKeys
	signer *transparency.Signer
}

func newInstallation(t testing.TB) installation {
	signer, err := transparency.NewSigner([]byte("secret of " + t.Name()))
	require.NoError(t, err)
	return installation{&messages{}, &saltKeys{keys: map[string][]byte{}}, signer}
}

func (in installation) key(t testing.TB) note.Verifier {
	key, err := transparency.ParseKey(in.signer.Key())
	require.NoError(t, err)
	return key
}

// publish runs a publisher in a directory until the test ends or stop is called.
func (in installation) publish(t testing.TB, dir string, witnesses ...transparency.Witness) (
	p *transparency.Publisher, stop func()) {
	p = transparency.NewPublisher(transparency.Options{Dir: dir, Messages: in.log, Keys: in.keys, Signer: in.signer,
		Witnesses: witnesses, Pause: time.Millisecond})
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = p.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return p, stop
}

// grown appends n events to the log and waits until they are published.
func (in installation) grown(t testing.TB, p *transparency.Publisher, n int) {
	last, _ := in.log.Last(t.Context())
	in.log.grow(n)
	for position := last.Position + 1; position <= last.Position+uint64(n); position++ {
		p.Observe(message(position))
	}
	require.NoError(t, p.WaitFor(t.Context(), last.Position+uint64(n)))
}

func (in installation) prove(t testing.TB, p *transparency.Publisher, position, since uint64) transparency.Bundle {
	b, err := p.Prove(t.Context(), position, since, true)
	require.NoError(t, err)
	return b
}

// TestEveryEventIsProven checks the proofs of all events of logs of several sizes, and that the log
// of each size begins with the log of each smaller size.
func TestEveryEventIsProven(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	for _, size := range []uint64{1, 2, 255, 256, 257, 600} {
		last, _ := in.log.Last(t.Context())
		in.grown(t, p, int(size-last.Position))
		for position := uint64(1); position <= size; position++ {
			data, err := in.prove(t, p, position, position).Marshal()
			require.NoError(t, err)
			b, err := transparency.ParseBundle(data)
			require.NoError(t, err)
			v, err := b.Verify(in.key(t))
			require.NoError(t, err)
			require.Equal(t, size, v.Checkpoint.Size)
			require.Equal(t, position, v.Event.Position)
			require.Equal(t, string(message(position).Body()), *v.Event.Payload)
			require.Equal(t, position, v.Since)
		}
	}
	_, err := p.Prove(t.Context(), 601, 0, true)
	require.Equal(t, domain.NotFound, domain.CodeOf(err))
	_, err = p.Prove(t.Context(), 0, 601, true)
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
}

// TestChangedBundlesAreRefused flips one bit at 1,000 places of a bundle. ParseBundle or Verify
// must refuse each.
func TestChangedBundlesAreRefused(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	in.grown(t, p, 300)
	random, found := rand.New(rand.NewPCG(1, 2)), 0
	const flips = 1000
	for range flips {
		data, err := in.prove(t, p, 1+random.Uint64N(300), random.Uint64N(300)).Marshal()
		require.NoError(t, err)
		data = bytes.TrimSpace(data)
		at := random.IntN(len(data))
		data[at] ^= 1 << random.IntN(8)
		b, err := transparency.ParseBundle(data)
		if err == nil {
			_, err = b.Verify(in.key(t))
		}
		if err != nil {
			found++
			continue
		}
		t.Errorf("byte %d was changed to %q: …%s…", at, data[at], data[max(0, at-20):min(len(data), at+20)])
	}
	require.Equal(t, flips, found)
	t.Logf("%d of %d flipped bits were found", found, flips)
}

// TestHistoryFindsMissingSwappedAndReplayedEvents checks 1,000 histories of an account in which
// events are missing, swapped or repeated.
func TestHistoryFindsMissingSwappedAndReplayedEvents(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	in.grown(t, p, 200)
	var whole []transparency.Verified
	for position := uint64(1); position <= 200; position++ {
		v, err := in.prove(t, p, position, 0).Verify(in.key(t))
		require.NoError(t, err)
		if position%3 != 0 { // events of account acme have such positions
			whole = append(whole, v)
		}
	}
	check := func(events []transparency.Verified) error {
		var h transparency.History
		for _, v := range events {
			if err := h.Add(v); err != nil {
				return err
			}
		}
		return nil
	}
	require.NoError(t, check(whole))
	random, found := rand.New(rand.NewPCG(3, 4)), 0
	const histories = 1000
	for i := range histories {
		events, at := slices.Clone(whole), 1+random.IntN(len(whole)-2)
		switch i % 4 {
		case 0:
			events = slices.Delete(events, at, at+1)
		case 1:
			events[at], events[at-1] = events[at-1], events[at]
		case 2:
			events = slices.Insert(events, at, events[random.IntN(at)])
		case 3: // replace the event by one of another account
			v, err := in.prove(t, p, 3, 0).Verify(in.key(t))
			require.NoError(t, err)
			events = slices.Insert(events, at, v)
		}
		if check(events) != nil {
			found++
		}
	}
	require.Equal(t, histories, found)
	t.Logf("%d of %d histories were refused", found, histories)
}

// TestOtherKeysAndOriginsAreRefused checks that a bundle is only valid for its own log.
func TestOtherKeysAndOriginsAreRefused(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	in.grown(t, p, 10)
	other, err := transparency.NewSigner([]byte("another secret"))
	require.NoError(t, err)
	key, err := transparency.ParseKey(other.Key())
	require.NoError(t, err)
	_, err = in.prove(t, p, 5, 0).Verify(key)
	require.ErrorContains(t, err, "verify the checkpoint")
}

// TestPayloadCanBeWithheld checks a bundle without the data of the event.
func TestPayloadCanBeWithheld(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	in.grown(t, p, 10)
	b, err := p.Prove(t.Context(), 4, 0, false)
	require.NoError(t, err)
	v, err := b.Verify(in.key(t))
	require.NoError(t, err)
	require.Nil(t, v.Event.Payload)
	data, err := b.Marshal()
	require.NoError(t, err)
	require.NotContains(t, string(data), "displayName")
}

// TestTwoControlPlanesBuildTheSameTree checks that the files are equal whatever batches they were
// written in.
func TestTwoControlPlanesBuildTheSameTree(t *testing.T) {
	in, one, two := newInstallation(t), t.TempDir(), t.TempDir()
	p, stop := in.publish(t, one)
	for range 5 {
		in.grown(t, p, 137)
	}
	stop()
	p, stop = in.publish(t, two)
	require.NoError(t, p.WaitFor(t.Context(), 5*137))
	stop()
	for _, name := range []string{"entries", "checkpoint"} {
		a := testutil.ReadFile(t, filepath.Join(one, name))
		b := testutil.ReadFile(t, filepath.Join(two, name))
		require.Equal(t, a, b, name)
	}
}

// TestDamagedAndCutFilesAreComputedAgain damages the file of entries at random places.
func TestDamagedAndCutFilesAreComputedAgain(t *testing.T) {
	in, dir := newInstallation(t), t.TempDir()
	p, stop := in.publish(t, dir)
	in.grown(t, p, 700)
	stop()
	path := filepath.Join(dir, "entries")
	whole := testutil.ReadFile(t, path)
	random := rand.New(rand.NewPCG(5, 6))
	for i := range 20 {
		damaged := slices.Clone(whole)
		if at := random.IntN(len(damaged)); i%2 == 0 {
			damaged[at] ^= 1 << random.IntN(8)
		} else {
			damaged = damaged[:at]
		}
		require.NoError(t, os.WriteFile(path, damaged, 0o600))
		p, stop := in.publish(t, dir)
		require.NoError(t, p.WaitFor(t.Context(), 700))
		stop()
		again := testutil.ReadFile(t, path)
		require.Equal(t, whole, again)
	}
}

// TestDamageWhileServing checks that a damaged file is not served.
func TestDamageWhileServing(t *testing.T) {
	in, dir := newInstallation(t), t.TempDir()
	p, _ := in.publish(t, dir)
	in.grown(t, p, 600)
	file, err := os.OpenFile(filepath.Join(dir, "entries"), os.O_RDWR, 0)
	require.NoError(t, err)
	defer file.Close()
	_, err = file.WriteAt([]byte{0xff}, 20)
	require.NoError(t, err)
	for _, path := range []string{"tile/0/000", "tile/entries/000"} {
		_, err = p.Resource(path)
		require.Equal(t, domain.DataLoss, domain.CodeOf(err), path)
	}
	_, err = p.Resource("tile/0/001")
	require.NoError(t, err)
}

// TestForkedLogIsNotSigned replaces the log by one with other events, or with fewer events.
func TestForkedLogIsNotSigned(t *testing.T) {
	for name, fork := range map[string]func(*messages){
		"shorter": func(l *messages) { l.all = l.all[:50] },
		"other event at the end": func(l *messages) {
			l.all[99] = integrity.NewMessage(100, "events.acme.datasets.forged", nil, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			in, dir := newInstallation(t), t.TempDir()
			p, stop := in.publish(t, dir)
			in.grown(t, p, 100)
			stop()
			signed := testutil.ReadFile(t, filepath.Join(dir, "checkpoint"))
			fork(in.log)
			require.Equal(t, domain.DataLoss, domain.CodeOf(transparency.RunOnce(t.Context(), transparency.Options{Dir: dir,
				Messages: in.log, Keys: in.keys, Signer: in.signer})))
			after := testutil.ReadFile(t, filepath.Join(dir, "checkpoint"))
			require.Equal(t, signed, after)
		})
	}
	t.Run("other event before the end, and the entries are lost", func(t *testing.T) {
		in, dir := newInstallation(t), t.TempDir()
		p, stop := in.publish(t, dir)
		in.grown(t, p, 100)
		stop()
		in.log.all[9] = integrity.NewMessage(10, "events.acme.datasets.forged", nil, nil)
		require.NoError(t, os.Remove(filepath.Join(dir, "entries")))
		err := transparency.RunOnce(t.Context(), transparency.Options{Dir: dir, Messages: in.log, Keys: in.keys,
			Signer: in.signer})
		require.Equal(t, domain.DataLoss, domain.CodeOf(err))
		require.ErrorContains(t, err, "the signed checkpoint")
	})
}

// TestKeyStoreFailsForAWhile checks that the publisher continues after its key store failed.
func TestKeyStoreFailsForAWhile(t *testing.T) {
	in, dir := newInstallation(t), t.TempDir()
	in.log.grow(10)
	failing := failingKeys{in.keys, make(chan struct{})}
	p := transparency.NewPublisher(transparency.Options{Dir: dir, Messages: in.log, Keys: failing, Signer: in.signer})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { _ = p.Run(ctx) }()
	<-failing.failed
	_, _, err := p.Checkpoint()
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.NoError(t, p.WaitFor(ctx, 10))
}

type failingKeys struct {
	*saltKeys
	failed chan struct{} // closed by the first call of SaltKey, which fails
}

func (k failingKeys) SaltKey(ctx context.Context, account string) ([]byte, error) {
	select {
	case <-k.failed:
		return k.saltKeys.SaltKey(ctx, account)
	default:
		close(k.failed)
		return nil, errors.New("the disk failed")
	}
}

// TestTilesLeadToTheRoot computes the root hash from the tiles that are served, and the leaves from
// the entry bundles.
func TestTilesLeadToTheRoot(t *testing.T) {
	in := newInstallation(t)
	p, _ := in.publish(t, t.TempDir())
	in.grown(t, p, 70_000)
	_, c, err := p.Checkpoint()
	require.NoError(t, err)
	hashes := tlog.TileHashReader(tlog.Tree{N: int64(c.Size), Hash: c.Root}, tileReader{p})
	root, err := tlog.TreeHash(int64(c.Size), hashes)
	require.NoError(t, err)
	require.Equal(t, c.Root, root)
	tile, err := p.Resource("tile/0/001")
	require.NoError(t, err)
	bundle, err := p.Resource("tile/entries/001")
	require.NoError(t, err)
	for i := range 256 {
		size := binary.BigEndian.Uint16(bundle.Content)
		leaf := tlog.RecordHash(bundle.Content[2 : 2+size])
		require.Equal(t, tile.Content[i*32:(i+1)*32], leaf[:])
		bundle.Content = bundle.Content[2+size:]
	}
	require.Empty(t, bundle.Content)
	for _, path := range []string{"", "checkpoint/", "tile/0/273.p/113", "tile/0/274", "tile/1/001.p/18", "tile/3/000",
		"tile/8/000", "tile/data/000", "tile/entries/274", "tile/0/0", "tile/-1/000", "tile/entries/999", "tile/0/../000",
		"tile/entries/x999/000"} {
		_, err := p.Resource(path)
		require.Equal(t, domain.NotFound, domain.CodeOf(err), path)
	}
}

type tileReader struct{ p *transparency.Publisher }

func (tileReader) Height() int { return 8 }

func (r tileReader) ReadTiles(tiles []tlog.Tile) (data [][]byte, err error) {
	for _, tile := range tiles {
		path := "tile/" + tile.Path()[len("tile/8/"):]
		found, err := r.p.Resource(path)
		if err != nil {
			return nil, err
		}
		data = append(data, found.Content)
	}
	return data, nil
}

func (tileReader) SaveTiles([]tlog.Tile, [][]byte) {}

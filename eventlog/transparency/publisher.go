package transparency

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/mod/sumdb/tlog"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Names of the files in the directory of a tree.
const (
	entriesFile    = "entries"    // file with a record of each event: see type record
	checkpointFile = "checkpoint" // file with the newest signed checkpoint
)

const (
	publishPause = 300 * time.Millisecond
	// catchUpBatch is the number of events after which the tree is synced while it is computed from
	// the log.
	catchUpBatch = 1 << 16
	// proveTimeout is how long Prove waits for a checkpoint that covers a new event.
	proveTimeout = 2 * time.Second
	retryPause   = time.Second // pause of Run after its first failure, doubled after each further one
	maxRetry     = 30 * time.Second
)

// Messages reads the events of the log.
type Messages interface {
	Last(ctx context.Context) (integrity.Checkpoint, error)
	Each(ctx context.Context, after, upTo uint64, each func(integrity.Message) error) error
	At(ctx context.Context, position uint64) (integrity.Message, error)
}

// SaltKeys stores the salt keys of accounts, the secrets from which the salts of their events are
// derived.
type SaltKeys interface {
	// SaltKey returns the salt key of an account. It creates the key if there is none.
	SaltKey(ctx context.Context, account string) ([]byte, error)
}

// Options configure a Publisher.
type Options struct {
	Dir       string // directory of the tree's files
	Messages  Messages
	Keys      SaltKeys
	Signer    *Signer
	Witnesses []Witness     // services that cosign each checkpoint
	Pause     time.Duration // minimum time between two checkpoints; 0 means publishPause
	Logger    *slog.Logger
}

// A Publisher appends the events of the log to the tree, and publishes signed checkpoints. It runs
// beside the log: when it fails it tries again, and no append waits for it.
type Publisher struct {
	Options
	feed *feed

	tree      atomic.Pointer[Tree]      // tree that Run keeps up to date; nil until its files are read
	published atomic.Pointer[published] // newest published checkpoint; nil before the first
	failure   atomic.Pointer[error]     // last error, while Run waits to try again; nil while it runs

	mu       sync.Mutex
	accounts map[string]*account
	last     time.Time     // when the last checkpoint was published
	changed  chan struct{} // closed and replaced when a checkpoint is published
}

// An account has the tag and the salter for the entries of an account's events.
type account struct {
	tag accountTag
	*salter
}

type published struct {
	Checkpoint
	signed []byte // the checkpoint as a note with its signature and all cosignatures
}

// NewPublisher returns a Publisher. The caller must pass the events of the log to Observe, and call
// Run.
func NewPublisher(o Options) *Publisher {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Pause = cmp.Or(o.Pause, publishPause)
	return &Publisher{Options: o, feed: newFeed(), accounts: map[string]*account{}, changed: make(chan struct{})}
}

// Observe receives an event of the log from a follower. It does not block, and does not keep the
// message.
func (p *Publisher) Observe(m integrity.Message) { p.feed.add(m) }

// Run keeps the tree up to date and publishes checkpoints until ctx is done. It tries again after
// errors.
func (p *Publisher) Run(ctx context.Context) error {
	pause := retryPause
	for {
		begun := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.failure.Store(&err)
		p.Logger.Error("cannot update the Merkle tree of the log or sign its checkpoint: trying again; no new proofs "+
			"until then. The log itself is not affected", "error", err)
		if time.Since(begun) > maxRetry {
			pause = retryPause
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return ctx.Err()
		}
		pause = min(2*pause, maxRetry)
	}
}

func (p *Publisher) run(ctx context.Context) error {
	tree, err := p.open(ctx)
	if err != nil {
		return err
	}
	defer func() {
		p.tree.Store(nil)
		tree.Close()
	}()
	for {
		end, err := p.Messages.Last(ctx)
		if err == nil {
			err = p.catchUp(ctx, tree, end.Position)
		}
		if err == nil {
			p.tree.Store(tree)
			err = p.publish(ctx, tree)
		}
		if err != nil {
			return err
		}
		p.failure.Store(nil)
		p.notify()
		if err := p.follow(ctx, tree); err != nil {
			return err
		}
	}
}

// follow appends the events that Observe receives and publishes checkpoints. It returns nil when it
// missed events, which the caller then reads from the log.
func (p *Publisher) follow(ctx context.Context, tree *Tree) error {
	for {
		select {
		case <-p.feed.grown:
		case <-ctx.Done():
			return ctx.Err()
		}
		if pause := p.Pause - time.Since(p.last); pause > 0 {
			select {
			case <-time.After(pause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		complete, err := p.appendObserved(ctx, tree)
		if err == nil && complete {
			err = p.publish(ctx, tree)
		}
		if err != nil || !complete {
			return err
		}
	}
}

// appendObserved appends the events that Observe received. complete is false when an event before
// them is missing.
func (p *Publisher) appendObserved(ctx context.Context, tree *Tree) (complete bool, err error) {
	for _, chunk := range p.feed.take() {
		for e := range chunk.all {
			if e.position <= tree.Size() {
				continue
			}
			if e.position != tree.Size()+1 {
				return false, nil
			}
			if err := p.append(ctx, tree, e); err != nil {
				return false, err
			}
		}
		chunk.release()
	}
	return true, nil
}

// open reads the tree's files and compares the tree with the last checkpoint and with the log.
func (p *Publisher) open(ctx context.Context) (_ *Tree, err error) {
	signed, err := os.ReadFile(filepath.Join(p.Dir, checkpointFile))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	if err == nil {
		key, err := ParseKey(p.Signer.Key())
		if err != nil {
			return nil, err
		}
		c, _, err := OpenCheckpoint(signed, key)
		if err != nil {
			return nil, fmt.Errorf("%s: %w: restore the file and keys/pepper from the same backup",
				filepath.Join(p.Dir, checkpointFile), err)
		}
		p.published.Store(&published{c, signed})
	}
	tree, removed, err := OpenTree(filepath.Join(p.Dir, entriesFile))
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			tree.Close()
		}
	}()
	if removed > 0 {
		p.Logger.Warn("the end of the Merkle tree's file was incomplete or damaged: computing its entries again from the "+
			"log", "bytes",
			removed, "entries", tree.Size())
	}
	end, err := p.Messages.Last(ctx)
	if err != nil {
		return nil, err
	}
	if known := max(tree.Size(), p.signedSize()); known > end.Position {
		return nil, domain.Errorf(domain.DataLoss, "the log ends at position %d, but its Merkle tree has %d events: the "+
			"log has lost events. Restore a backup; or, to accept the loss, move %s away: a new tree is computed, whose "+
			"checkpoints witnesses refuse", end.Position,
			known, p.Dir)
	}
	if err := p.compare(ctx, tree); err != nil {
		return nil, err
	}
	return tree, p.checkSigned(tree)
}

func (p *Publisher) signedSize() uint64 {
	if signed := p.published.Load(); signed != nil {
		return signed.Size
	}
	return 0
}

// compare computes the entry of the tree's newest event again and compares it, because a log that
// lost events has other events at their positions.
func (p *Publisher) compare(ctx context.Context, tree *Tree) error {
	if tree.Size() == 0 {
		return nil
	}
	entry, link, err := tree.Entry(tree.Size())
	if err != nil {
		return err
	}
	m, err := p.Messages.At(ctx, tree.Size())
	if err != nil {
		return err
	}
	e := encodeEvent(m)
	owner, err := p.account(ctx, e.account())
	if err == nil && e.entry(owner.salts(e.position), link) != entry {
		err = domain.Errorf(domain.DataLoss, "the log has another event at position %d than its Merkle tree: the log has "+
			"lost events, or the salt keys in the key store were replaced. Restore data/datakeys and data/tree from the "+
			"same backup",
			tree.Size())
	}
	return err
}

// checkSigned returns an error when the tree does not match the last signed checkpoint.
func (p *Publisher) checkSigned(tree *Tree) error {
	signed := p.published.Load()
	if signed == nil || tree.Size() < signed.Size {
		return nil
	}
	root, err := tree.Root(signed.Size)
	if err == nil && root != signed.Root {
		err = domain.Errorf(domain.DataLoss, "the Merkle tree of the first %d events has the root hash %s, but the "+
			"signed checkpoint in %s has %s: the log or the salt keys were changed. No checkpoint is signed until they "+
			"match: restore a backup", signed.Size, root,
			filepath.Join(p.Dir, checkpointFile), signed.Root)
	}
	return err
}

// catchUp appends the events of the log up to a position to the tree.
func (p *Publisher) catchUp(ctx context.Context, tree *Tree, upTo uint64) error {
	for tree.Size() < upTo {
		err := p.Messages.Each(ctx, tree.Size(), min(upTo, tree.Size()+catchUpBatch), func(m integrity.Message) error {
			return p.append(ctx, tree, encodeEvent(m))
		})
		if err == nil {
			err = tree.Flush()
		}
		if err != nil {
			return err
		}
	}
	return p.checkSigned(tree)
}

func (p *Publisher) append(ctx context.Context, tree *Tree, e encodedEvent) error {
	owner, err := p.account(ctx, e.account())
	if err != nil {
		return fmt.Errorf("compute the tree's entry for position %d: %w", e.position, err)
	}
	return tree.append(e, owner.tag, owner.salts(e.position))
}

// account returns the tag and the salter of an account.
func (p *Publisher) account(ctx context.Context, name []byte) (*account, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if owner, ok := p.accounts[string(name)]; ok {
		return owner, nil
	}
	key, err := p.Keys.SaltKey(ctx, string(name))
	if err != nil {
		return nil, err
	}
	owner := &account{tagOf(name), newSalter(key)}
	p.accounts[string(name)] = owner
	return owner, nil
}

// publish syncs the tree, and signs and publishes a checkpoint. It does nothing when the tree has
// not grown.
func (p *Publisher) publish(ctx context.Context, tree *Tree) error {
	if tree.Size() == p.signedSize() {
		return nil
	}
	if err := tree.Flush(); err != nil {
		return err
	}
	c := Checkpoint{Origin: p.Signer.Origin, Size: tree.Size()}
	var err error
	if c.Root, err = tree.Root(c.Size); err != nil {
		return err
	}
	signed, err := p.Signer.Sign(c)
	if err != nil {
		return err
	}
	signed = p.cosign(ctx, tree, c, signed)
	if err := disk.WriteFile(filepath.Join(p.Dir, checkpointFile), signed); err != nil {
		return err
	}
	p.published.Store(&published{c, signed})
	p.last = time.Now()
	p.notify()
	return nil
}

// notify wakes the callers of WaitFor.
func (p *Publisher) notify() {
	p.mu.Lock()
	defer p.mu.Unlock()
	close(p.changed)
	p.changed = make(chan struct{})
}

// WaitFor returns when a checkpoint of at least size events is published.
func (p *Publisher) WaitFor(ctx context.Context, size uint64) error {
	for {
		p.mu.Lock()
		changed := p.changed
		p.mu.Unlock()
		if p.signedSize() >= size && p.tree.Load() != nil {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// current returns the tree and the newest checkpoint. The error is Unavailable when there is none
// yet.
func (p *Publisher) current() (*Tree, *published, error) {
	tree, head := p.tree.Load(), p.published.Load()
	if tree != nil && head != nil {
		return tree, head, nil
	}
	if failure := p.failure.Load(); failure != nil {
		return nil, nil, domain.Errorf(domain.Unavailable, "the Merkle tree of the log is not available: %v", *failure)
	}
	return nil, nil, domain.Errorf(domain.Unavailable, "the Merkle tree of the log is being computed: try again")
}

// Checkpoint returns the newest checkpoint, signed and parsed.
func (p *Publisher) Checkpoint() (signed []byte, c Checkpoint, err error) {
	_, head, err := p.current()
	if err != nil {
		return nil, c, err
	}
	return head.signed, head.Checkpoint, nil
}

// Prove returns a bundle with the newest checkpoint. Unless position is 0, the bundle proves the
// event at that position, and payload says whether it discloses the event's data. Unless oldSize is
// 0, the bundle proves that the log has only grown since it had oldSize events.
func (p *Publisher) Prove(ctx context.Context, position, oldSize uint64,
	payload bool) (Bundle, error) {
	if size := max(position, oldSize); size > p.signedSize() {
		p.waitForSigned(ctx, size, position)
	}
	tree, head, err := p.current()
	b := Bundle{Format: BundleFormat}
	if err != nil {
		return b, err
	}
	b.Proof = string(head.signed)
	if position > 0 {
		if err := p.proveEvent(ctx, tree, head, position, payload, &b); err != nil {
			return b, err
		}
	}
	if oldSize > 0 {
		if oldSize > head.Size {
			return b, domain.Errorf(domain.InvalidArgument, "the newest checkpoint covers %d events, fewer than the %d of "+
				"since", head.Size,
				oldSize)
		}
		step, err := stepOf(tree, oldSize, head.Size)
		if err != nil {
			return b, err
		}
		b.Growth = []Step{step}
	}
	return b, nil
}

// waitForSigned waits until a checkpoint covers the given size, which another control plane may
// have signed already. For a size that the log does not have, it only waits for the position. When
// it fails, Prove says what is missing.
func (p *Publisher) waitForSigned(ctx context.Context, size, position uint64) {
	soon, cancel := context.WithTimeout(ctx, proveTimeout)
	defer cancel()
	if size > position {
		if last, err := p.Messages.Last(soon); err != nil || last.Position < size {
			size = position
		}
	}
	_ = p.WaitFor(soon, size)
}

func (p *Publisher) proveEvent(ctx context.Context, tree *Tree, head *published, position uint64,
	payload bool, b *Bundle) error {
	if position > head.Size {
		return domain.Errorf(domain.NotFound, "the newest checkpoint covers %d events, but not yet position %d: try "+
			"again in a second", head.Size, position)
	}
	m, err := p.Messages.At(ctx, position)
	if err != nil {
		return err
	}
	entry, link, err := tree.Entry(position)
	if err != nil {
		return err
	}
	owner, err := p.account(ctx, encodeEvent(m).account())
	if err == nil {
		b.Event, err = Disclose(m, entry, owner.salts(position), link, payload)
	}
	if err != nil {
		return err
	}
	hashes, err := tlog.ProveRecord(int64(head.Size), int64(position-1), tree)
	if err != nil {
		return err
	}
	b.Proof = inclusionProof(position, hashes, head.signed)
	return nil
}

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

// Files in the directory of a tree.
const (
	entriesFile    = "entries"    // see record
	checkpointFile = "checkpoint" // the newest signed checkpoint
)

const (
	publishPause = 300 * time.Millisecond
	// catchUpBatch is the number of events between two syncs while the tree is built from the log.
	catchUpBatch = 1 << 16
	// proveTimeout bounds the wait for a checkpoint with an event that was just recorded.
	proveTimeout = 2 * time.Second
	retryPause   = time.Second // after the first failure
	maxRetry     = 30 * time.Second
)

// Messages is the log.
type Messages interface {
	Last(ctx context.Context) (integrity.Checkpoint, error)
	Each(ctx context.Context, after, upTo uint64, each func(integrity.Message) error) error
	At(ctx context.Context, position uint64) (integrity.Message, error)
}

// A SaltKey derives the salts of an account's events. The salts of events at positions below From
// were erased.
type SaltKey struct {
	Key  []byte
	From uint64
}

// SaltKeys stores the salt keys.
type SaltKeys interface {
	// SaltKey returns the salt key of an account, which it creates if it does not exist.
	SaltKey(ctx context.Context, account string) (SaltKey, error)
}

// Options configure a Publisher.
type Options struct {
	Dir       string // directory of the tree
	Messages  Messages
	Keys      SaltKeys
	Signer    *Signer
	Witnesses []Witness     // cosign each checkpoint
	Pause     time.Duration // least time between two checkpoints; 0 is publishPause
	Logger    *slog.Logger
}

// A Publisher appends the events of the log to the tree, and publishes signed checkpoints. Nothing
// waits for it: when it fails, it tries again, and the log is not affected.
type Publisher struct {
	Options
	feed *feed

	tree      atomic.Pointer[Tree]      // nil until the tree is loaded
	published atomic.Pointer[published] // nil before the first checkpoint
	failure   atomic.Pointer[error]     // why the publisher has stopped for a while; nil while it runs

	mu      sync.Mutex
	salters map[string]accountSalter
	last    time.Time     // of the last checkpoint
	changed chan struct{} // closed at the next checkpoint
}

type accountSalter struct {
	salter
	from uint64
}

type published struct {
	Checkpoint
	signed []byte // with cosignatures
}

// NewPublisher returns a publisher. Its Observe must receive the events of the log.
func NewPublisher(o Options) *Publisher {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Pause = cmp.Or(o.Pause, publishPause)
	return &Publisher{Options: o, feed: newFeed(), salters: map[string]accountSalter{}, changed: make(chan struct{})}
}

// Observe adds an event that a follower of the log has received. It returns at once.
func (p *Publisher) Observe(m integrity.Message) { p.feed.add(m) }

// Run publishes until ctx is done.
func (p *Publisher) Run(ctx context.Context) error {
	pause := retryPause
	for {
		begun := time.Now()
		err := p.run(ctx)
		if ctx.Err() != nil {
			return ctx.Err()
		}
		p.failure.Store(&err)
		p.Logger.Error("cannot publish the log's tree; trying again. The log itself is not affected", "error", err)
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

// follow appends the events that Observe receives. It returns nil when events are missing.
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
		for _, m := range p.feed.take(tree.Size()) {
			if m.Position() != tree.Size()+1 {
				return nil
			}
			if err := p.append(ctx, tree, m); err != nil {
				return err
			}
		}
		if err := p.publish(ctx, tree); err != nil {
			return err
		}
	}
}

// open loads the tree and compares it with the last checkpoint and with the log.
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
		p.Logger.Warn("entries of the log's tree were incomplete or damaged: computing them again from the log", "bytes",
			removed, "entries", tree.Size())
	}
	end, err := p.Messages.Last(ctx)
	if err != nil {
		return nil, err
	}
	if known := max(tree.Size(), p.signedSize()); known > end.Position {
		return nil, domain.Errorf(domain.DataLoss, "the log ends at position %d, but its tree has %d events: the log lost "+
			"events. To give them up, move %s away: a new tree is built, and witnesses refuse its checkpoints", end.Position,
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

// compare computes the newest entry again, because a log that lost events has other events at their
// positions.
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
	salts, err := p.salts(ctx, m)
	if errors.Is(err, ErrErased) {
		return nil
	}
	if err == nil && entryOf(m, salts, link) != entry {
		err = domain.Errorf(domain.DataLoss, "the log has another event at position %d than its tree: the log lost events, "+
			"or the salt keys in the key store were replaced. Restore data/datakeys and data/tree from the same backup",
			tree.Size())
	}
	return err
}

// checkSigned returns an error when the tree contradicts the last signed checkpoint.
func (p *Publisher) checkSigned(tree *Tree) error {
	signed := p.published.Load()
	if signed == nil || tree.Size() < signed.Size {
		return nil
	}
	root, err := tree.Root(signed.Size)
	if err == nil && root != signed.Root {
		err = domain.Errorf(domain.DataLoss, "the tree of the first %d events has the root %s, but the signed checkpoint in "+
			"%s has %s: the log or the salt keys were changed. Nothing is signed until both fit together", signed.Size, root,
			filepath.Join(p.Dir, checkpointFile), signed.Root)
	}
	return err
}

// catchUp appends the events of the log up to a position.
func (p *Publisher) catchUp(ctx context.Context, tree *Tree, upTo uint64) error {
	for tree.Size() < upTo {
		err := p.Messages.Each(ctx, tree.Size(), min(upTo, tree.Size()+catchUpBatch), func(m integrity.Message) error {
			return p.append(ctx, tree, m)
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

func (p *Publisher) append(ctx context.Context, tree *Tree, m integrity.Message) error {
	salts, err := p.salts(ctx, m)
	if err != nil {
		return fmt.Errorf("entry of position %d: %w", m.Position(), err)
	}
	return tree.Append(m, salts)
}

// salts returns the salts of an event.
func (p *Publisher) salts(ctx context.Context, m integrity.Message) (Salts, error) {
	account := accountOf(m.Subject())
	p.mu.Lock()
	defer p.mu.Unlock()
	s, ok := p.salters[account]
	if !ok {
		key, err := p.Keys.SaltKey(ctx, account)
		if err != nil {
			return Salts{}, err
		}
		s = accountSalter{newSalter(key.Key), key.From}
		p.salters[account] = s
	}
	if m.Position() < s.from {
		return Salts{}, ErrErased
	}
	return s.salts(m.Position()), nil
}

// publish syncs the tree, and signs and publishes a checkpoint of it, unless it did not grow.
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

// WaitFor returns once a checkpoint with at least size events is published.
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

// current returns the tree and the newest checkpoint.
func (p *Publisher) current() (*Tree, *published, error) {
	tree, head := p.tree.Load(), p.published.Load()
	if tree != nil && head != nil {
		return tree, head, nil
	}
	if failure := p.failure.Load(); failure != nil {
		return nil, nil, domain.Errorf(domain.Unavailable, "the log has no tree: %v", *failure)
	}
	return nil, nil, domain.Errorf(domain.Unavailable, "the tree of the log is being built: try again")
}

// Checkpoint returns the newest signed checkpoint.
func (p *Publisher) Checkpoint() (signed []byte, c Checkpoint, err error) {
	_, head, err := p.current()
	if err != nil {
		return nil, c, err
	}
	return head.signed, head.Checkpoint, nil
}

// Prove returns a bundle that proves the event at a position in the newest checkpoint; position 0
// proves no event. If since is positive, the bundle also proves that the log only grew since
// it had since events. payload states whether the bundle discloses the data of the event.
func (p *Publisher) Prove(ctx context.Context, position, since uint64,
	payload bool) (Bundle, error) {
	if position > p.signedSize() {
		soon, cancel := context.WithTimeout(ctx, proveTimeout)
		_ = p.WaitFor(soon, position) // proveEvent reports what is missing
		cancel()
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
	if since > 0 {
		if since > head.Size {
			return b, domain.Errorf(domain.InvalidArgument, "the newest checkpoint has %d events, fewer than %d", head.Size,
				since)
		}
		step, err := stepOf(tree, since, head.Size)
		if err != nil {
			return b, err
		}
		b.Growth = []Step{step}
	}
	return b, nil
}

func (p *Publisher) proveEvent(ctx context.Context, tree *Tree, head *published, position uint64,
	payload bool, b *Bundle) error {
	if position > head.Size {
		return domain.Errorf(domain.NotFound, "the newest checkpoint has %d events, and not yet position %d: try again in a "+
			"second", head.Size, position)
	}
	m, err := p.Messages.At(ctx, position)
	if err != nil {
		return err
	}
	entry, link, err := tree.Entry(position)
	if err != nil {
		return err
	}
	salts, err := p.salts(ctx, m)
	if err == nil {
		b.Event, err = Disclose(m, entry, salts, link, payload)
	}
	if errors.Is(err, ErrErased) {
		return domain.Errorf(domain.FailedPrecondition, "the event at position %d cannot be disclosed: %v", position, err)
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

// Package backup copies an installation to a bucket while it runs, and restores it.
//
// A backup consists of objects with the following keys. It is complete when its manifest exists:
//
//	manifests/ID.json            the manifest and its signature; ID is the start time of the backup
//	events/FIRST-ID.zst          messages of the stream EVENTS, beginning with position FIRST
//	usage/FIRST-ID.zst           messages of the stream USAGE, beginning with sequence FIRST
//	files/ID/KEY                 a file of the installation: KEY is its key in the installation's bucket
//	lists/ID.zst                 the list of all files of the backup, one JSON object per line
//	secrets/ID.age               keys and data keys, encrypted for the recipients
//	answers/ID.age               the records of the idempotency store, encrypted for the recipients
//
// Objects never change, except manifests, which Prune can replace. A backup does not copy data
// again that an earlier backup has: its events continue those of its parent, the backup before it,
// and its list of files refers to files/ objects of earlier backups.
package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/klauspost/compress/zstd"

	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog"
)

// format is the version of the object layout above, which each manifest states.
const format = 1

const (
	manifestPrefix = "manifests/"
	manifestSuffix = ".json"
	idLayout       = "20060102T150405.000000Z"
)

// A Manifest describes a complete backup.
type Manifest struct {
	Format  int    `json:"format"`
	ID      string `json:"id"`
	Version string `json:"version"` // version of anneal that created the backup
	// Log is the ID of the first event, which identifies the installation.
	Log string `json:"log"`
	// Parent is the ID of the backup whose events precede those of this one; "" if this backup has
	// the log from its first event on.
	Parent string `json:"parent,omitempty"`
	// Checkpoint is the position of the log whose state the backup has. Hash is the hash chain of
	// the events up to there.
	eventlog.Checkpoint
	Hash string `json:"hash"`
	// Time is the time of the state that the backup contains: the log had no later event than that of
	// Checkpoint. In backups of earlier versions, which have no EventTime, it is too late: see
	// stateTime.
	Time      time.Time `json:"time"`
	EventTime time.Time `json:"eventTime,omitzero"` // time of the event of Checkpoint
	EndTime   time.Time `json:"endTime"`            // time at which the backup was complete
	Events    []Segment `json:"events"`             // events after the parent's position, up to Checkpoint
	Usage     []Segment `json:"usage,omitempty"`
	// UsageLast is the sequence of the last message of the stream USAGE that this backup or one of its
	// parents has. UsageCreated is the time at which the stream was created; zero in backups of
	// earlier versions.
	UsageLast    uint64    `json:"usageLast"`
	UsageCreated time.Time `json:"usageCreated,omitzero"`
	// UsageComplete reports that Usage has all messages of the stream, because it is another stream
	// than that of the parents. Their usage records are then not part of this backup.
	UsageComplete bool     `json:"usageComplete,omitempty"`
	Files         FileList `json:"files"`
	Secrets       Object   `json:"secrets"`
	// Answers has the records of the idempotency store; nil if there are none, and in backups of
	// earlier versions, whose Secrets has them.
	Answers    *Object  `json:"answers,omitempty"`
	Recipients []string `json:"recipients"` // age public keys for which Secrets is encrypted
	// Copied is the number of bytes that this backup added to the bucket of backups.
	Copied int64 `json:"copied"`

	digest string // SHA-256 of the manifest's JSON in the bucket, hexadecimal
	// signature of the manifest as a signed note: see Manifest.verify; empty in backups of earlier
	// versions of anneal
	signature []byte
}

// stateTime returns the time of the state that the backup contains. Earlier versions of anneal set
// Time after they had copied the files; the ID has the time at which the backup began.
func (m Manifest) stateTime() time.Time {
	if began, err := time.Parse(idLayout, m.ID); m.EventTime.IsZero() && err == nil {
		return began
	}
	return m.Time
}

// hasStateAt reports whether the backup surely has all events up to a time: that its last event is
// later. Time does not suffice, because an event with an earlier time can be recorded later.
func (m Manifest) hasStateAt(at time.Time) bool {
	if m.EventTime.IsZero() {
		return m.stateTime().After(at)
	}
	return m.EventTime.After(at)
}

// usageOf returns the segments with the usage records of a backup, oldest first. chain has the
// backup and its parents, newest first.
func usageOf(chain []Manifest) (all []Segment) {
	if n := slices.IndexFunc(chain, func(m Manifest) bool { return m.UsageComplete }); n >= 0 {
		chain = chain[:n+1]
	}
	for _, m := range slices.Backward(chain) {
		all = append(all, m.Usage...)
	}
	return all
}

// An Object is an object in the bucket of backups. SHA256 is hexadecimal.
type Object struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"` // size in bytes
	SHA256 string `json:"sha256"`
}

// A Segment has the messages of a stream from sequence First to sequence Last, both included.
type Segment struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Object
}

// A FileList describes the files of a backup. List is the object that lists them; nil if there are
// no files.
type FileList struct {
	List  *Object `json:"list,omitempty"`
	Count int     `json:"count"`
	Bytes int64   `json:"bytes"`
	// References reports that the files are listed but not copied: the installation's own bucket keeps
	// them.
	References bool `json:"references,omitempty"`
	// Missing are the keys of recorded files that the installation no longer had, at most
	// maxMissing.
	Missing []string `json:"missing,omitempty"`
}

// A File is one file of the installation: Key is its key in the installation's bucket, and Object
// its copy. If the backup only lists files (see FileList.References), Object.Key is "".
type File struct {
	Key      string    `json:"file"`
	Modified time.Time `json:"modified"`
	Object
}

const maxMissing = 100

// Open opens a bucket of backups. target is a directory, which Open creates if it does not exist,
// or the URL of a bucket, such as s3://BUCKET?prefix=PREFIX/.
func Open(ctx context.Context, target string) (*blobs.Store, error) {
	// Backups need no signed URLs, so BaseURL and Key are only placeholders.
	o := blobs.Options{URL: target, BaseURL: "http://localhost/unused", Key: make([]byte, 16)}
	if !strings.Contains(target, "://") {
		o.URL, o.Dir = "", target
		if err := os.MkdirAll(target, 0o700); err != nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "target %q cannot be a directory for backups (%v): name a "+
				"directory that the server's user can write, or the URL of a bucket", target, err)
		}
	}
	return blobs.Open(ctx, o)
}

// OpenExisting opens a bucket that has backups. It returns NotFound if target is a directory
// without backups, and creates no directory.
func OpenExisting(ctx context.Context, target string) (*blobs.Store, error) {
	if !strings.Contains(target, "://") {
		if _, err := os.Stat(filepath.Join(target, manifestPrefix)); err != nil {
			return nil, noBackup(target)
		}
	}
	return Open(ctx, target)
}

func noBackup(target string) error {
	return domain.Errorf(domain.NotFound, "%s has no complete backup: name the target of `anneal backup create TARGET`",
		target)
}

// IDs returns the IDs of the complete backups in a bucket, oldest first.
func IDs(ctx context.Context, target *blobs.Store) (all []string, err error) {
	for f, err := range target.List(ctx, manifestPrefix) {
		if err != nil {
			return nil, err
		}
		if id, ok := strings.CutSuffix(strings.TrimPrefix(f.Key, manifestPrefix), manifestSuffix); ok {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return all, nil
}

const maxManifest = 16 << 20 // maximum size of a manifest in bytes

func readManifest(ctx context.Context, target *blobs.Store, id string) (m Manifest, err error) {
	key := manifestPrefix + id + manifestSuffix
	content, err := target.Get(ctx, key)
	if err != nil {
		return m, err
	}
	defer content.Close()
	all, err := io.ReadAll(io.LimitReader(content, maxManifest+1))
	if err != nil {
		return m, err
	}
	body, signature, _ := bytes.Cut(all, []byte("\n"))
	if err := json.Unmarshal(body, &m); err != nil || len(all) > maxManifest || m.ID != id {
		return m, damaged(id, "%s is not the manifest of backup %s, or is damaged", key, id)
	}
	m.digest, m.signature = digestOf(body), signature
	if m.Format != format {
		return m, domain.Errorf(domain.FailedPrecondition, "%s has format %d of backups, but this version of anneal "+
			"reads only format %d: use anneal %s, which created the backup, or a later version",
			key, m.Format, format, m.Version)
	}
	return m, nil
}

// put stores an object under a key. write writes the content of the object.
func put(ctx context.Context, target *blobs.Store, key string, write func(io.Writer) error) (Object, error) {
	r, w := io.Pipe()
	written := make(chan struct{})
	go func() {
		defer close(written)
		buffered := bufio.NewWriterSize(w, 1<<20)
		err := write(buffered)
		w.CloseWithError(errors.Join(err, buffered.Flush()))
	}()
	object, err := putContent(ctx, target, key, r)
	_ = r.Close() // makes the function write fail if the bucket could not store the object
	<-written
	return object, err
}

func putContent(ctx context.Context, target *blobs.Store, key string, content io.Reader) (Object, error) {
	sum := sha256.New()
	n, err := target.Put(ctx, key, io.TeeReader(content, sum))
	if err != nil {
		return Object{}, fmt.Errorf("store %s of the backup: %w", key, err)
	}
	return Object{key, n, hex.EncodeToString(sum.Sum(nil))}, nil
}

// compressed returns a function that writes the output of write compressed with Zstandard.
func compressed(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		z, err := zstd.NewWriter(w)
		if err != nil {
			return err
		}
		return errors.Join(write(z), z.Close())
	}
}

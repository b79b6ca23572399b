// Package backup copies an installation to a bucket while it runs, and restores it.
//
// A backup consists of objects below the following keys, and is complete when its manifest exists:
//
//	manifests/ID.json            the manifest and its signature; ID is the time at which the backup began
//	events/FIRST-ID.zst          messages of the stream EVENTS, from position FIRST on
//	usage/FIRST-ID.zst           messages of the stream USAGE
//	files/ID/KEY                 a file of the bucket of the installation
//	lists/ID.zst                 the list of the files, one JSON object per line
//	secrets/ID.age               keys, data keys and stored responses, encrypted for the recipients
//
// Objects never change, except manifests: see Prune. A later backup refers to the objects of earlier
// ones instead of copying the same data again: its events follow those of its parent, and its list names
// copies of earlier backups.
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

// format is the version of the format of backups.
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
	Version string `json:"version"` // of anneal
	// Log is the ID of the first event, which identifies the installation.
	Log string `json:"log"`
	// Parent is the ID of the backup that has the events before those of this one; "" if this one has
	// the first event.
	Parent string `json:"parent,omitempty"`
	// Checkpoint is the position of the state that the backup has, and Hash the hash chain there.
	eventlog.Checkpoint
	Hash       string    `json:"hash"`
	Time       time.Time `json:"time"`    // at which the installation had the state
	EndTime    time.Time `json:"endTime"` // at which the backup was complete
	Events     []Segment `json:"events"`  // from the parent's position to the checkpoint
	Usage      []Segment `json:"usage,omitempty"`
	UsageLast  uint64    `json:"usageLast"` // last position of the stream USAGE in this backup or a parent
	Files      FileList  `json:"files"`
	Secrets    Object    `json:"secrets"`
	Recipients []string  `json:"recipients"` // age recipients that can decrypt Secrets
	// Copied is the number of bytes that this backup added to the bucket of backups.
	Copied int64 `json:"copied"`

	digest    string // of the JSON in the object
	signature []byte // see Manifest.verify; empty in backups of earlier versions
}

// An Object is an object of the bucket of backups. SHA256 is hexadecimal.
type Object struct {
	Key    string `json:"key"`
	Size   int64  `json:"size"` // bytes
	SHA256 string `json:"sha256"`
}

// A Segment has the messages of a stream from one position to another, both included.
type Segment struct {
	First uint64 `json:"first"`
	Last  uint64 `json:"last"`
	Object
}

// A FileList describes the copies of files. List is absent if the installation has no files.
type FileList struct {
	List       *Object `json:"list,omitempty"`
	Count      int     `json:"count"`
	Bytes      int64   `json:"bytes"`
	References bool    `json:"references,omitempty"` // the files are not copied: their bucket keeps them
	// Missing are the keys of recorded files that the installation no longer has, at most maxMissing.
	Missing []string `json:"missing,omitempty"`
}

// A File is one file of the installation. Object has no key in a list with references.
type File struct {
	Key      string    `json:"file"`
	Modified time.Time `json:"modified"`
	Object
}

const maxMissing = 100

// Open opens the bucket of backups at a target: a directory, or the URL of a bucket, such as
// s3://BUCKET?prefix=PREFIX/. It creates a directory that does not exist.
func Open(ctx context.Context, target string) (*blobs.Store, error) {
	o := blobs.Options{URL: target, BaseURL: "http://localhost/unused", Key: make([]byte, 16)} // no URL is signed
	if !strings.Contains(target, "://") {
		o.URL, o.Dir = "", target
		if err := os.MkdirAll(target, 0o700); err != nil {
			return nil, domain.Errorf(domain.FailedPrecondition, "target %q cannot be a directory for backups (%v): name a "+
				"directory that the server's user can write, or the URL of a bucket", target, err)
		}
	}
	return blobs.Open(ctx, o)
}

// OpenExisting is like Open for a target that has backups, and creates nothing.
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

const maxManifest = 16 << 20 // bytes

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
		return m, damaged(id, "%s is not the manifest of backup %s", key, id)
	}
	m.digest, m.signature = digestOf(body), signature
	if m.Format != format {
		return m, domain.Errorf(domain.FailedPrecondition, "%s has format %d, and this version of anneal reads format %d: "+
			"use the version of anneal that wrote it (%s), or a later one", key, m.Format, format, m.Version)
	}
	return m, nil
}

// put stores the content that write writes under a key.
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
	_ = r.Close() // ends write if the bucket has failed
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

// compressed returns a function that writes what write writes, compressed.
func compressed(write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		z, err := zstd.NewWriter(w)
		if err != nil {
			return err
		}
		return errors.Join(write(z), z.Close())
	}
}

// Package blobs keeps what is too big for the log: datasets, weights,
// checkpoints, metrics. A bucket is a folder of this machine by default, or
// lies in an object store.
package blobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/memblob" // mem://
	_ "gocloud.dev/blob/s3blob"  // s3://
	"gocloud.dev/gcerrors"

	"anneal/disk"
	"anneal/domain"
)

// Options say where the bucket is.
type Options struct {
	// URL is the bucket. "" is a folder, Dir; so is file:///DIR. Compiled in are s3:// (any
	// server that speaks S3: s3://bucket?endpoint=…&region=…, credentials as
	// its SDK finds them) and mem://, which forgets. gs:// and azblob:// need
	// one more import of gocloud.dev/blob and are left out for their size.
	URL string
	// Dir is where files lie when URL is "". It is made when missing.
	Dir string
	// BaseURL is where Handler can be reached by whoever gets a signed URL,
	// such as http://127.0.0.1:8080/blobs; Key signs, and has 16 bytes or
	// more. Both are needed unless the bucket signs by itself (s3://).
	BaseURL string
	Key     []byte
	Now     func() time.Time // nil is time.Now
	// Intercept carries out each change of the bucket, or does not: for tests of
	// faults. Nil carries out all.
	Intercept func(change, key string, do func() error) error
	Logger    *slog.Logger // nil is silence
}

// A Store is a bucket. It is safe for concurrent use.
//
// A key is a path like models/acme/m1/config.json: at most 1,024 bytes, its
// parts neither empty nor beginning with a dot. What is put under a key that
// exists replaces it; readers see the old content or the new, never a part.
type Store struct {
	bucket *blob.Bucket
	files  *folder // nil unless the bucket is a folder
	signer *signer // nil when the bucket signs by itself
	now    func() time.Time
	change func(change, key string, do func() error) error
	tended chan struct{} // closed when what a start leaves to do is done
	stop   context.CancelFunc
}

// Open opens the bucket. The caller closes it.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{now: o.Now, change: o.Intercept, tended: make(chan struct{})}
	if s.now == nil {
		s.now = time.Now
	}
	if s.change == nil {
		s.change = func(_, _ string, do func() error) error { return do() }
	}
	if err := s.open(ctx, o); err != nil {
		return nil, err
	}
	ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(s.tended)
		if s.files != nil {
			s.files.tend(ctx, cmp.Or(o.Logger, slog.New(slog.DiscardHandler)))
		}
	}()
	if strings.HasPrefix(o.URL, "s3:") {
		return s, nil
	}
	signer, err := newSigner(o.BaseURL, o.Key)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	s.signer = signer
	return s, nil
}

func (s *Store) open(ctx context.Context, o Options) (err error) {
	if o.URL != "" {
		at, err := url.Parse(o.URL)
		if err != nil {
			return domain.Errorf(domain.InvalidArgument, "the bucket's URL cannot be read: write s3://BUCKET, or leave it out to keep files in a folder")
		}
		if at.Scheme == "" {
			return domain.Errorf(domain.InvalidArgument, "%q is no bucket's URL: write s3://BUCKET, or leave it out to keep files in a folder", o.URL)
		}
		if at.Scheme == "file" {
			o.URL, o.Dir = "", at.Path
			return s.open(ctx, o)
		}
		if !blob.DefaultURLMux().ValidBucketScheme(at.Scheme) {
			return domain.Errorf(domain.InvalidArgument, "buckets of %s:// are not compiled in: use s3://, or leave the URL out to keep files in a folder", at.Scheme)
		}
		if s.bucket, err = blob.OpenBucket(ctx, o.URL); err != nil {
			return fmt.Errorf("opening the bucket at %s://%s: %w", at.Scheme, at.Host, err)
		}
		return nil
	}
	if o.Dir == "" {
		return domain.Errorf(domain.InvalidArgument, "the bucket needs a folder or a URL")
	}
	if s.files, err = openFolder(o.Dir, s.now()); err != nil {
		return explain(err, o.Dir)
	}
	s.bucket, err = fileblob.OpenBucket(s.files.dir, &fileblob.Options{Metadata: fileblob.MetadataDontWrite, NoTempDir: true})
	return err
}

// Close releases the bucket.
func (s *Store) Close() error {
	s.stop()
	<-s.tended
	return s.bucket.Close()
}

// Put stores what r yields under key and answers its size in bytes. Once it
// returns, the content survives a power failure.
func (s *Store) Put(ctx context.Context, key string, r io.Reader) (n int64, err error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	err = s.change("put", key, func() (err error) {
		n, err = s.put(ctx, key, r)
		return err
	})
	return n, err
}

func (s *Store) put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if s.files != nil {
		n, err := s.files.put(ctx, key, r)
		return n, explain(err, key)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // before Close, it drops what was written
	w, err := s.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: contentType})
	if err != nil {
		return 0, explain(err, key)
	}
	n, err := io.Copy(w, r)
	if err != nil {
		cancel()
		_ = w.Close()
		return n, explain(err, key)
	}
	return n, explain(w.Close(), key)
}

const contentType = "application/octet-stream"

// Get opens what is stored under key; NotFound when there is nothing, DataLoss
// when it is known to be damaged. The caller closes it.
func (s *Store) Get(ctx context.Context, key string) (Content, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if s.files != nil {
		r, err := s.files.open(key)
		if err != nil {
			return nil, explain(err, key)
		}
		return r, nil
	}
	r, err := s.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return nil, explain(err, key)
	}
	return r, nil
}

// Size is the number of bytes under key; NotFound when there is nothing.
func (s *Store) Size(ctx context.Context, key string) (int64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	attributes, err := s.bucket.Attributes(ctx, key)
	if err != nil {
		return 0, explain(err, key)
	}
	return attributes.Size, nil
}

// A File is one entry of a listing.
type File struct {
	Key  string
	Size int64 // bytes
	Time time.Time
}

// List yields everything below a folder, such as "models/acme/m1/", in the
// order of keys. A folder that does not exist is empty.
func (s *Store) List(ctx context.Context, folder string) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		if err := checkFolder(folder); err != nil {
			yield(File{}, err)
			return
		}
		for entries := s.bucket.List(&blob.ListOptions{Prefix: folder}); ; {
			entry, err := entries.Next(ctx)
			switch {
			case errors.Is(err, io.EOF):
				return
			case err != nil:
				yield(File{}, explain(err, folder))
				return
			}
			if !yield(File{entry.Key, entry.Size, entry.ModTime}, nil) {
				return
			}
		}
	}
}

// Files is what lies below a folder: names relative to it, with their sizes.
func (s *Store) Files(ctx context.Context, folder string) (domain.Files, error) {
	files := domain.Files{Folder: folder, Sizes: map[string]int64{}}
	for f, err := range s.List(ctx, folder) {
		if err != nil {
			return domain.Files{}, err
		}
		files.Sizes[strings.TrimPrefix(f.Key, folder)] = f.Size
	}
	return files, nil
}

// Delete removes what is stored under key. Nothing there is no error. The
// reconciler alone calls it, with what no event refers to.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return s.change("delete", key, func() error { return s.remove(ctx, key) })
}

func (s *Store) remove(ctx context.Context, key string) error {
	if s.files != nil {
		return explain(s.files.delete(key), key)
	}
	if err := s.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return explain(err, key)
	}
	return nil
}

// DeleteFolder removes everything below a folder. One that does not exist is
// already gone. It is for folders of a request that no event refers to; what one
// may refer to is the reconciler's to delete.
func (s *Store) DeleteFolder(ctx context.Context, folder string) error {
	if err := checkFolder(folder); err != nil {
		return err
	}
	return s.change("delete", folder, func() error { return s.removeFolder(ctx, folder) })
}

func (s *Store) removeFolder(ctx context.Context, folder string) error {
	if s.files != nil {
		return explain(s.files.remove(folder), folder)
	}
	for f, err := range s.List(ctx, folder) {
		if err != nil {
			return err
		}
		if err := s.bucket.Delete(ctx, f.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return explain(err, f.Key)
		}
	}
	return nil
}

// MaxKey is the most bytes of a key; MaxPart of what lies between slashes.
const (
	MaxKey  = 1024
	MaxPart = 200
)

func checkKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return domain.Errorf(domain.InvalidArgument, "a file's path must have 1 to %d bytes", MaxKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "" || part[0] == '.':
			return domain.Errorf(domain.InvalidArgument, "file name %q: must not be empty, and not begin with a dot", part)
		case len(part) > MaxPart:
			return domain.Errorf(domain.InvalidArgument, "a file's name must have at most %d bytes", MaxPart)
		// The last two mean something to the driver for folders.
		case strings.ContainsFunc(part, func(r rune) bool { return r < 32 || r == 127 || r == '\\' || r == '\uFFFD' }),
			strings.HasSuffix(part, ".attrs"), strings.Contains(part, "__0x"):
			return domain.Errorf(domain.InvalidArgument, "file name %q: control characters, backslashes, \"__0x\" and names ending in .attrs are not allowed", part)
		}
	}
	return nil
}

func checkFolder(folder string) error {
	name, ok := strings.CutSuffix(folder, "/")
	if !ok {
		return domain.Errorf(domain.InvalidArgument, "a folder must end in a slash")
	}
	return checkKey(name)
}

// explain turns the errors that somebody can do something about into faults.
func explain(err error, key string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &domain.Error{Code: domain.ResourceExhausted, Reason: disk.Full,
			Message: "the store for files is full: delete what is not needed, or have the operator free some space or add a larger disk, and try again"}
	case errors.Is(err, syscall.ENOTEMPTY):
		return domain.Errorf(domain.Unavailable, "%s is still being written: try again", key)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, os.ErrExist):
		return domain.Errorf(domain.InvalidArgument, "%s: a file and a folder cannot have the same name: choose another", key)
	case errors.Is(err, os.ErrPermission):
		return domain.Errorf(domain.Internal, "the store for files may not be written: the operator must give the server's user rights on its folder")
	case errors.Is(err, os.ErrNotExist), gcerrors.Code(err) == gcerrors.NotFound:
		return domain.Errorf(domain.NotFound, "there is no file %s", key)
	}
	return err
}

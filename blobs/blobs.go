// Package blobs stores files that are too large for the log: datasets, weights, checkpoints,
// metrics. They are in a bucket, which is a local directory by default, or a bucket of an object
// store.
package blobs

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"gocloud.dev/blob"
	"gocloud.dev/blob/fileblob"
	_ "gocloud.dev/blob/memblob" // driver for mem://
	_ "gocloud.dev/blob/s3blob"  // driver for s3://
	"gocloud.dev/gcerrors"

	"anneal/disk"
	"anneal/domain"
)

// Options configures a Store.
type Options struct {
	// URL is the URL of the bucket. "" is the directory Dir; file:///DIR is the directory /DIR.
	// s3:// is a bucket of any S3-compatible server (s3://bucket?endpoint=…&region=…), with the
	// credentials that the AWS SDK finds. mem:// is a bucket in memory, which is lost with the
	// process. gs:// and azblob:// are left out because they would make the binary much larger.
	URL string
	// Dir is the directory of the files when URL is "". It is created if it does not exist.
	Dir string
	// BaseURL is the URL of Handler in signed URLs, such as http://127.0.0.1:8080/blobs. Key is the
	// secret of at least 16 bytes that signs the URLs. BaseURL and Key are required unless the
	// bucket signs its own URLs (s3://).
	BaseURL string
	Key     []byte
	Now     func() time.Time // returns the current time; nil stands for time.Now
	// Intercept is called for each change of the bucket: change is put, copy or delete, and key is
	// the key of the file, or a prefix whose files are deleted. Intercept makes the change by
	// calling do, or returns an error without calling do, so that tests can inject faults. If it is
	// nil, all changes are made.
	Intercept func(change, key string, do func() error) error
	Logger    *slog.Logger // nil discards log messages
	// Bundles reports whether PutAll may store the files of a job together in one file of Dir, which
	// earlier versions of anneal cannot read. nil means that it may.
	Bundles func() bool
}

// A Store gives access to a bucket. It is safe for concurrent use.
//
// A key is a path of at most MaxKey bytes, such as models/acme/m1/config.json. The parts between
// slashes are not empty and do not begin with a dot. Put replaces the content of an existing key
// atomically: readers see the old content or the new content.
type Store struct {
	bucket *blob.Bucket
	files  *fileStore // access to the bucket if it is a directory; otherwise nil
	signer *signer    // nil when the bucket signs its own URLs
	now    func() time.Time
	change func(change, key string, do func() error) error
	ready  chan struct{} // closed when fileStore.maintain, which Open starts, has ended
	stop   context.CancelFunc
}

// Open opens the bucket. Call Close to release it.
func Open(ctx context.Context, o Options) (*Store, error) {
	s := &Store{now: o.Now, change: o.Intercept, ready: make(chan struct{})}
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
		defer close(s.ready)
		if s.files != nil {
			s.files.maintain(ctx, cmp.Or(o.Logger, slog.New(slog.DiscardHandler)))
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
			return domain.Errorf(domain.InvalidArgument,
				"the URL of the bucket is invalid: use s3://BUCKET or file:///DIR")
		}
		if at.Scheme == "" {
			return domain.Errorf(domain.InvalidArgument,
				"%q is not the URL of a bucket: use s3://BUCKET or file:///DIR", o.URL)
		}
		if at.Scheme == "file" {
			o.URL, o.Dir = "", at.Path
			return s.open(ctx, o)
		}
		if !blob.DefaultURLMux().ValidBucketScheme(at.Scheme) {
			return domain.Errorf(domain.InvalidArgument,
				"%s:// buckets are not supported: use s3://BUCKET or file:///DIR", at.Scheme)
		}
		if s.bucket, err = blob.OpenBucket(ctx, o.URL); err != nil {
			return fmt.Errorf("open bucket %s://%s: %w", at.Scheme, at.Host, err)
		}
		return nil
	}
	if o.Dir == "" {
		return domain.Errorf(domain.InvalidArgument, "the bucket has neither a directory nor a URL: use s3://BUCKET or "+
			"file:///DIR")
	}
	if s.files, err = openFileStore(o.Dir, s.now(), o.Logger); err != nil {
		return explain(err, o.Dir)
	}
	s.files.bundling = o.Bundles
	s.bucket, err = fileblob.OpenBucket(s.files.dir,
		&fileblob.Options{Metadata: fileblob.MetadataDontWrite, NoTempDir: true})
	return err
}

// Close closes the bucket. The Store must not be used after that.
func (s *Store) Close() error {
	s.stop()
	<-s.ready
	if s.files != nil {
		s.files.journal.close()
		for i := range s.files.locks {
			s.files.locks[i].close()
		}
	}
	return s.bucket.Close()
}

// Put stores the content of r under key and returns its size in bytes. When it returns, the content
// is durable.
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

// PutAll stores several contents, by key. When it returns, all of them are durable. It takes less
// time than several calls of Put, because in a directory it syncs small files together. It is not
// atomic: after an error, some of the files may be stored.
func (s *Store) PutAll(ctx context.Context, contents map[string][]byte) error {
	keys := slices.Sorted(maps.Keys(contents))
	put := func() error {
		if s.files != nil {
			return explain(journaled{s.files}.storeAll(ctx, contents), strings.Join(keys, ", "))
		}
		for _, key := range keys {
			if _, err := s.put(ctx, key, bytes.NewReader(contents[key])); err != nil {
				return err
			}
		}
		return nil
	}
	for _, key := range slices.Backward(keys) {
		if err := checkKey(key); err != nil {
			return err
		}
		inner := put
		put = func() error { return s.change("put", key, inner) }
	}
	return put()
}

// Create stores content durably under a key that does not exist. If the key exists, it changes
// nothing and returns AlreadyExists. Of several concurrent calls, also of other processes, one
// succeeds.
func (s *Store) Create(ctx context.Context, key string, content []byte) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return s.change("put", key, func() error {
		if s.files != nil {
			return explain(journaled{s.files}.create(ctx, key, content), key)
		}
		_, err := s.write(ctx, key, bytes.NewReader(content), &blob.WriterOptions{ContentType: contentType, IfNotExist: true})
		return err
	})
}

func (s *Store) put(ctx context.Context, key string, r io.Reader) (int64, error) {
	if s.files != nil {
		n, err := journaled{s.files}.store(ctx, key, r)
		return n, explain(err, key)
	}
	return s.write(ctx, key, r, &blob.WriterOptions{ContentType: contentType})
}

func (s *Store) write(ctx context.Context, key string, r io.Reader, o *blob.WriterOptions) (int64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := s.bucket.NewWriter(ctx, key, o)
	if err != nil {
		return 0, explain(err, key)
	}
	n, err := io.Copy(w, r)
	if err != nil {
		cancel() // so that Close discards what was written
		_ = w.Close()
		return n, explain(err, key)
	}
	return n, explain(w.Close(), key)
}

const contentType = "application/octet-stream"

// Get opens the content of key for reading. The caller must close it. The error is NotFound when
// the key does not exist, and DataLoss when its content is known to be damaged.
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

// Size returns the length of the content of key in bytes. The error is NotFound when the key does
// not exist, and DataLoss when the file that contains its content is damaged.
func (s *Store) Size(ctx context.Context, key string) (int64, error) {
	if err := checkKey(key); err != nil {
		return 0, err
	}
	attributes, err := s.bucket.Attributes(ctx, key)
	if s.files != nil && gcerrors.Code(err) == gcerrors.NotFound {
		switch r, bundled := bundlesOf(s.files).open(key); {
		case bundled == nil:
			return r.info.Size(), nil
		case !errors.Is(bundled, os.ErrNotExist):
			err = bundled
		}
	}
	if err != nil {
		return 0, explain(err, key)
	}
	return attributes.Size, nil
}

// A File is one entry of a listing.
type File struct {
	Key  string
	Size int64 // size in bytes
	Time time.Time
}

// Files returns the files below a prefix: their sizes, by name relative to the prefix.
func (s *Store) Files(ctx context.Context, prefix string) (domain.Files, error) {
	files := domain.Files{Prefix: prefix, Sizes: map[string]int64{}}
	for f, err := range s.List(ctx, prefix) {
		if err != nil {
			return domain.Files{}, err
		}
		files.Sizes[strings.TrimPrefix(f.Key, prefix)] = f.Size
	}
	return files, nil
}

// Delete deletes the file under key. If the key does not exist, it returns nil. Only the reconciler
// calls Delete, for files that no event refers to.
func (s *Store) Delete(ctx context.Context, key string) error {
	if err := checkKey(key); err != nil {
		return err
	}
	return s.change("delete", key, func() error { return s.remove(ctx, key) })
}

// DeleteAll deletes files that were stored with Create and that no event references. Keys that do
// not exist are ignored. After an error, some of the files may be deleted.
func (s *Store) DeleteAll(ctx context.Context, keys []string) error {
	for _, key := range keys {
		if err := checkKey(key); err != nil {
			return err
		}
	}
	for chunk := range slices.Chunk(keys, deletedTogether) {
		remove := func() error {
			if s.files != nil {
				return explain(journaled{s.files}.deleteAll(chunk), chunk[0])
			}
			for _, key := range chunk {
				if err := s.remove(ctx, key); err != nil {
					return err
				}
			}
			return ctx.Err()
		}
		if err := s.change("delete", chunk[0], remove); err != nil {
			return err
		}
	}
	return nil
}

// deletedTogether is the maximum number of files that DeleteAll deletes in one batch with one sync.
// Other changes wait for the batch.
const deletedTogether = 128

func (s *Store) remove(ctx context.Context, key string) error {
	if s.files != nil {
		return explain(s.files.delete(key), key)
	}
	if err := s.bucket.Delete(ctx, key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
		return explain(err, key)
	}
	return nil
}

// DeletePrefix deletes all files below a prefix; if there are none, it returns nil. Call it only
// for the files of one request, to which no event refers. The reconciler deletes all other files.
func (s *Store) DeletePrefix(ctx context.Context, prefix string) error {
	if err := checkPrefix(prefix); err != nil {
		return err
	}
	return s.change("delete", prefix, func() error { return removePrefix(ctx, s, prefix) })
}

func removePrefix(ctx context.Context, s *Store, prefix string) error {
	if s.files != nil {
		return explain(s.files.removeAll(prefix), prefix)
	}
	for f, err := range s.List(ctx, prefix) {
		if err != nil {
			return err
		}
		if err := s.bucket.Delete(ctx, f.Key); err != nil && gcerrors.Code(err) != gcerrors.NotFound {
			return explain(err, f.Key)
		}
	}
	return nil
}

// MaxKey is the maximum length of a key in bytes. MaxPart is the maximum length in bytes of each
// part of a key between slashes.
const (
	MaxKey  = 1024
	MaxPart = 200
)

func checkKey(key string) error {
	if key == "" || len(key) > MaxKey {
		return domain.Errorf(domain.InvalidArgument, "the path of the file has %d bytes: it must have 1 to %d", len(key),
			MaxKey)
	}
	for part := range strings.SplitSeq(key, "/") {
		switch {
		case part == "" || part[0] == '.':
			return domain.Errorf(domain.InvalidArgument,
				"the file name %q is not allowed: it must not be empty or begin with a dot", part)
		case len(part) > MaxPart:
			return domain.Errorf(domain.InvalidArgument, "the name of the file has %d bytes: at most %d are allowed", len(part),
				MaxPart)
		// Reject names with special characters, and names that the driver for directories uses itself:
		// it escapes characters as __0x… and stores the attributes of the file NAME in NAME.attrs.
		case strings.ContainsFunc(part, func(r rune) bool { return r < 32 || r == 127 || r == '\\' || r == '\uFFFD' }),
			strings.HasSuffix(part, ".attrs"), strings.Contains(part, "__0x"):
			return domain.Errorf(domain.InvalidArgument,
				"file name %q: control characters, backslashes, \"__0x\" and names ending in .attrs are not allowed", part)
		}
	}
	return nil
}

func checkPrefix(prefix string) error {
	name, ok := strings.CutSuffix(prefix, "/")
	if !ok {
		return domain.Errorf(domain.InvalidArgument, "the prefix %q must end in a slash", prefix)
	}
	return checkKey(name)
}

// explain converts an error of the bucket that a user or the operator can fix into a domain.Error
// with advice. It returns other errors unchanged.
func explain(err error, key string) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return &domain.Error{Code: domain.ResourceExhausted, Reason: disk.Full,
			Message: "the file store is full: delete datasets, models or jobs that you do not need, or ask the operator " +
				"to free disk space, then try again"}
	case errors.Is(err, syscall.ENOTEMPTY):
		return domain.Errorf(domain.Unavailable, "the file %s is still being written: try again", key)
	case isNameConflict(err):
		return domain.Errorf(domain.InvalidArgument,
			"%s would be both a file and a directory: choose another name", key)
	case errors.Is(err, os.ErrPermission):
		return domain.Errorf(domain.Internal,
			"the file store is not accessible: the operator must let the server's user read and write its directory")
	case gcerrors.Code(err) == gcerrors.FailedPrecondition:
		return alreadyExists(key)
	case errors.Is(err, os.ErrNotExist), gcerrors.Code(err) == gcerrors.NotFound:
		return domain.Errorf(domain.NotFound, "the file %s does not exist", key)
	}
	return err
}

func alreadyExists(key string) error {
	return domain.Errorf(domain.AlreadyExists, "file %s already exists", key)
}

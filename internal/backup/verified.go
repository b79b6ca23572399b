package backup

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/klauspost/compress/zstd"

	"anneal/blobs"
	"anneal/domain"
)

const reasonDamaged = "DAMAGED_BACKUP"

// damaged returns the error of a damaged or missing object of the backup with the given ID. It
// advises to remove later backups too, because they may need the same object.
func damaged(id, format string, args ...any) error {
	return &domain.Error{Code: domain.DataLoss, Reason: reasonDamaged, Message: fmt.Sprintf(format, args...) +
		": move " + manifestPrefix + id + manifestSuffix + " and all later manifests out of the target"}
}

// Advice that an operation appends to an error of the function damaged. The error already advises
// to move manifests out of the target.
const (
	restoreAdvice = "; restore then uses the backup before them"
	createAdvice  = "; the next backup then continues the one before them"
	pruneAdvice   = ", and prune again"
)

// advise appends advice to err if the function damaged has returned it.
func advise(err error, advice string) error {
	var e *domain.Error
	if !errors.As(err, &e) || e.Reason != reasonDamaged {
		return err
	}
	return &domain.Error{Code: e.Code, Reason: e.Reason, Message: err.Error() + advice}
}

// A verified is a reader of an object. Read returns DataLoss instead of io.EOF if the size or the
// SHA-256 of the content differs from the object's, and before that if the content is too long.
// Only a reader that reads up to io.EOF has verified the content.
type verified struct {
	content io.ReadCloser
	object  Object
	sum     hash.Hash
	read    int64
}

func streamObject(ctx context.Context, target *blobs.Store, o Object) (*verified, error) {
	content, err := target.Get(ctx, o.Key)
	if domain.CodeOf(err) == domain.NotFound {
		err = damaged(objectID(o.Key), "the object %s is missing in the bucket of backups", o.Key)
	}
	if err != nil {
		return nil, err
	}
	return &verified{content: content, object: o, sum: sha256.New()}, nil
}

func (v *verified) Read(p []byte) (int, error) {
	n, err := v.content.Read(p)
	_, _ = v.sum.Write(p[:n])
	v.read += int64(n)
	ended := errors.Is(err, io.EOF)
	if v.read > v.object.Size ||
		ended && (v.read < v.object.Size || hex.EncodeToString(v.sum.Sum(nil)) != v.object.SHA256) {
		err = damaged(objectID(v.object.Key), "the object %s in the bucket of backups is damaged: its content does "+
			"not match its SHA-256", v.object.Key)
	}
	return n, err
}

func (v *verified) Close() error { return v.content.Close() }

// openObject verifies the whole content of an object and returns a reader of it, which need not be
// read to the end. The content is in a temporary file, which has no name and disappears when it is
// closed.
func openObject(ctx context.Context, target *blobs.Store, o Object) (file io.ReadCloser, err error) {
	content, err := streamObject(ctx, target, o)
	if err != nil {
		return nil, err
	}
	defer content.Close()
	temporary, err := os.CreateTemp("", "anneal-backup-*")
	if err != nil {
		return nil, err
	}
	if err = os.Remove(temporary.Name()); err == nil {
		_, err = io.Copy(temporary, content)
	}
	if err == nil {
		_, err = temporary.Seek(0, io.SeekStart)
	}
	if err != nil {
		return nil, errors.Join(err, temporary.Close())
	}
	return temporary, nil
}

// copyObject copies the content of an object to a key of another bucket, and verifies it: Put
// stores nothing if the reader fails.
func copyObject(ctx context.Context, target *blobs.Store, o Object, dst *blobs.Store, key string) error {
	content, err := streamObject(ctx, target, o)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := dst.Put(ctx, key, io.Reader(content)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, content)
	return err
}

// lines verifies the content of a compressed object, and calls visit with every line of it.
func lines(ctx context.Context, target *blobs.Store, o Object, visit func([]byte) error) error {
	content, err := openObject(ctx, target, o)
	if err != nil {
		return err
	}
	defer content.Close()
	z, err := zstd.NewReader(content)
	if err != nil {
		return err
	}
	defer z.Close()
	in := bufio.NewReaderSize(z, 1<<20)
	for {
		line, err := in.ReadBytes('\n')
		if errors.Is(err, io.EOF) && len(line) == 0 {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read %s of the backup: %w", o.Key, err)
		}
		if err := visit(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
}

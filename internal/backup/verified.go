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

// damaged returns an error of a backup that has the given ID; later backups may need the same object.
func damaged(id, format string, args ...any) error {
	return &domain.Error{Code: domain.DataLoss, Reason: reasonDamaged, Message: fmt.Sprintf(format, args...) +
		": move " + manifestPrefix + id + manifestSuffix + " and all later manifests out of the target"}
}

// Advice for damaged backups, after that to move manifests away.
const (
	restoreAdvice = "; restore then uses the backup before them"
	createAdvice  = "; the next backup then continues the one before them"
	pruneAdvice   = ", and prune again"
)

// advise appends the advice of an operation to an error of damaged.
func advise(err error, advice string) error {
	var e *domain.Error
	if !errors.As(err, &e) || e.Reason != reasonDamaged {
		return err
	}
	return &domain.Error{Code: e.Code, Reason: e.Reason, Message: err.Error() + advice}
}

// A verified reads an object. It returns DataLoss if the content is not the one that was stored: at the
// end of the content, or as soon as it is too long. Only a reader that reads to the end has verified it.
type verified struct {
	content io.ReadCloser
	object  Object
	sum     hash.Hash
	read    int64
}

func streamObject(ctx context.Context, target *blobs.Store, o Object) (*verified, error) {
	content, err := target.Get(ctx, o.Key)
	if domain.CodeOf(err) == domain.NotFound {
		err = damaged(objectID(o.Key), "the object %s of the backup is missing", o.Key)
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
		err = damaged(objectID(v.object.Key), "the object %s of the backup is damaged", v.object.Key)
	}
	return n, err
}

func (v *verified) Close() error { return v.content.Close() }

// openObject returns the content of an object after it has verified all of it, so that a reader may stop
// anywhere. A temporary file without a name has the content.
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

// copyObject stores the content of an object under a key of another bucket. Put stores nothing if reading
// fails, and it reads to the end.
func copyObject(ctx context.Context, target *blobs.Store, o Object, to *blobs.Store, key string) error {
	content, err := streamObject(ctx, target, o)
	if err != nil {
		return err
	}
	defer content.Close()
	if _, err := to.Put(ctx, key, io.Reader(content)); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, content)
	return err
}

// lines calls each for every line of a compressed object, whose content is verified first.
func lines(ctx context.Context, target *blobs.Store, o Object, each func([]byte) error) error {
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
		if err := each(bytes.TrimSuffix(line, []byte("\n"))); err != nil {
			return err
		}
	}
}

package blobs

import (
	"context"
	"errors"
	"io"
	"os"

	"anneal/domain"
)

// Range opens length bytes of the content of key for reading, beginning at offset; with a negative
// length, everything from offset on. The caller must close the reader. The error is NotFound when
// the key does not exist.
func (s *Store) Range(ctx context.Context, key string, offset, length int64) (io.ReadCloser, error) {
	if err := checkKey(key); err != nil {
		return nil, err
	}
	if s.files != nil {
		r, err := s.files.open(key)
		if err != nil {
			return nil, explain(err, key)
		}
		if offset < 0 {
			return nil, errors.Join(domain.Errorf(domain.InvalidArgument, "file %s: offset %d must not be negative", key,
				offset), r.Close())
		}
		if r.pos = offset; length >= 0 {
			r.end = min(r.end, offset+length)
		}
		return r, nil
	}
	r, err := s.bucket.NewRangeReader(ctx, key, offset, length, nil)
	if err != nil {
		return nil, explain(err, key)
	}
	return r, nil
}

// Copy stores the current content of key src under key dst as well. In a directory, both files
// share their disk blocks, which are never overwritten. An object store copies the file itself,
// without sending it to this process, if it supports that. The error is NotFound when there is no
// file under src.
func (s *Store) Copy(ctx context.Context, dst, src string) error {
	if err := errors.Join(checkKey(dst), checkKey(src)); err != nil {
		return err
	}
	return s.change("copy", dst, func() error { return s.copy(ctx, dst, src) })
}

func (s *Store) copy(ctx context.Context, to, from string) error {
	if s.files != nil {
		err := s.files.link(to, from)
		if err == nil || errors.Is(err, os.ErrNotExist) && bundleOf(from) == "" {
			return explain(err, from)
		}
	} else if s.bucket.Copy(ctx, to, from, nil) == nil {
		return nil
	}
	content, err := s.Get(ctx, from)
	if err != nil {
		return err
	}
	_, err = s.put(ctx, to, content)
	return errors.Join(err, content.Close())
}

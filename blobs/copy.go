package blobs

import (
	"context"
	"errors"
	"io"
	"os"

	"anneal/domain"
)

// Range opens length bytes of what is stored under key, from offset on; a
// negative length is all that follows. NotFound when there is nothing. The
// caller closes it.
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
			return nil, errors.Join(domain.Errorf(domain.InvalidArgument, "file %s: offset %d must not be negative", key, offset), r.Close())
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

// Copy stores under one key what is stored under another, now: what is put
// there later does not change it. In a folder both names share the same bytes
// of the disk, which are never written again; an object store copies on its
// own side where it can. NotFound when there is nothing to copy.
func (s *Store) Copy(ctx context.Context, to, from string) error {
	if err := errors.Join(checkKey(to), checkKey(from)); err != nil {
		return err
	}
	return s.change("copy", to, func() error { return s.copy(ctx, to, from) })
}

func (s *Store) copy(ctx context.Context, to, from string) error {
	if s.files != nil {
		err := s.files.link(to, from)
		if err == nil || errors.Is(err, os.ErrNotExist) {
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

package blobs

import (
	"cmp"
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"

	"gocloud.dev/blob"
)

// List yields the files in the bucket whose keys begin with prefix, such as "models/acme/m1/",
// ordered by key.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[File, error] {
	return func(yield func(File, error) bool) {
		err := checkPrefix(prefix)
		if err == nil && s.files != nil {
			err = listDirectory(ctx, s.files, prefix, func(f File) bool { return yield(f, nil) })
		} else if err == nil {
			err = listBucket(ctx, s.bucket, prefix, func(f File) bool { return yield(f, nil) })
		}
		if err != nil && !errors.Is(err, fs.SkipAll) {
			yield(File{}, explain(err, prefix))
		}
	}
}

// listBucket calls visit with the files of a bucket. It returns fs.SkipAll when visit returns false.
func listBucket(ctx context.Context, bucket *blob.Bucket, prefix string, visit func(File) bool) error {
	for entries := bucket.List(&blob.ListOptions{Prefix: prefix}); ; {
		entry, err := entries.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		case !visit(File{entry.Key, entry.Size, entry.ModTime}):
			return fs.SkipAll
		}
	}
}

// listDirectory calls visit with the files below prefix, in bundles and in directories. It returns fs.SkipAll
// when visit returns false. The driver of the Go CDK is not used here, because its pages, which are
// ordered by directory, leave out files, and so do directories that it cannot read.
func listDirectory(ctx context.Context, f *fileStore, prefix string, visit func(File) bool) error {
	bundled, err := bundlesOf(f).list(prefix)
	if err != nil {
		return err
	}
	err = walk(ctx, f.dir, prefix, func(file File) bool {
		for len(bundled) > 0 && bundled[0].Key <= file.Key {
			if bundled[0].Key < file.Key && !visit(bundled[0]) {
				return false
			}
			bundled = bundled[1:]
		}
		return visit(file)
	})
	if err != nil {
		return err
	}
	for _, file := range bundled {
		if !visit(file) {
			return fs.SkipAll
		}
	}
	return nil
}

// walk calls visit with the files in a directory below root and below it, ordered by key. directory
// ends in a slash, or is "" for all files. A directory comes where its name with a slash does. Files
// and directories that are deleted meanwhile are left out.
func walk(ctx context.Context, root, directory string, visit func(File) bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(root, filepath.FromSlash(directory)))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	keyOf := func(e os.DirEntry) string {
		if e.IsDir() {
			return directory + e.Name() + "/"
		}
		return directory + e.Name()
	}
	slices.SortFunc(entries, func(a, b os.DirEntry) int { return cmp.Compare(keyOf(a), keyOf(b)) })
	for _, e := range entries {
		if checkKey(directory+e.Name()) != nil {
			continue // another program, or the store itself, has written it
		}
		if e.IsDir() {
			if err := walk(ctx, root, keyOf(e), visit); err != nil {
				return err
			}
			continue
		}
		info, err := e.Info()
		switch {
		case errors.Is(err, os.ErrNotExist) || err == nil && !info.Mode().IsRegular():
			continue
		case err != nil:
			return err
		}
		if !visit(File{keyOf(e), info.Size(), info.ModTime()}) {
			return fs.SkipAll
		}
	}
	return nil
}

package tasks

import (
	"archive/tar"
	"archive/zip"
	"bufio"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"anneal/blobs"
	"anneal/disk"
	"anneal/domain"
)

// Limits of an evaluator's code.
const (
	maxCodeFiles = 500
	maxCodeBytes = 32 << 20
	maxArchive   = 16 << 20 // maximum bytes of an uploaded archive, because its list of files is in memory
)

// An unpacking writes the code of an evaluator to a directory: the uploaded plain files, and the
// files in uploaded archives (.zip, .tar, .tar.gz, .tgz). When all files of an archive are in one
// directory, that directory's name is removed from their paths.
type unpacking struct {
	dir   string
	bytes int64
	names []string
	notes []string
}

// upload writes the uploaded files to the directory and unpacks the archives among them.
func (u *unpacking) upload(ctx context.Context, store *blobs.Store, files domain.Files) error {
	for _, name := range slices.Sorted(maps.Keys(files.Sizes)) {
		if err := u.stored(ctx, store, files.Prefix+name, name, files.Sizes[name]); err != nil {
			return err
		}
	}
	return nil
}

func (u *unpacking) stored(ctx context.Context, store *blobs.Store, key, name string, size int64) error {
	content, err := store.Get(ctx, key)
	if err != nil {
		return err
	}
	defer content.Close()
	kind := archiveOf(name)
	switch {
	case kind == "":
		return u.write(name, content)
	case size > maxArchive:
		return domain.Errorf(domain.InvalidArgument, "%s: has %d bytes: the limit of an archive is %d: remove files "+
			"that scoring does not need", name, size, maxArchive)
	}
	archive, err := os.CreateTemp("", "anneal-code-")
	if err != nil {
		return err
	}
	defer os.Remove(archive.Name())
	defer archive.Close()
	if _, err := io.Copy(disk.Watch(archive), content); err != nil {
		return err
	}
	read := u.tar
	if kind == "zip" {
		read = u.zip
	}
	return read(name, archive, size)
}

func archiveOf(name string) string {
	lower := strings.ToLower(name)
	switch {
	case strings.HasSuffix(lower, ".zip"):
		return "zip"
	case strings.HasSuffix(lower, ".tar"), strings.HasSuffix(lower, ".tar.gz"), strings.HasSuffix(lower, ".tgz"):
		return "tar"
	}
	return ""
}

// broken returns the error for an archive that cannot be unpacked because of err. When err is a
// domain.Error, or an error of a file on this machine such as a full disk, it returns err itself:
// the archive is not the cause, so the build is tried again.
func broken(archive string, err error) error {
	var fault *domain.Error
	var local *fs.PathError
	if errors.As(err, &fault) || errors.As(err, &local) {
		return err
	}
	return domain.Errorf(domain.InvalidArgument, "%s: is not a valid archive (%s): pack the code again", archive, err)
}

func (u *unpacking) zip(archive string, file *os.File, size int64) error {
	all, err := zip.NewReader(file, size)
	if err != nil {
		return broken(archive, err)
	}
	var names []string
	for _, f := range all.File {
		if !f.FileInfo().IsDir() {
			names = append(names, f.Name)
		}
	}
	shared := sharedDirectory(names)
	for _, f := range all.File {
		if f.FileInfo().IsDir() {
			continue
		}
		if !f.Mode().IsRegular() {
			return notAFile(archive, f.Name)
		}
		err := u.member(archive, strings.TrimPrefix(f.Name, shared), f.Open)
		if err != nil {
			return broken(archive, err)
		}
	}
	return nil
}

func (u *unpacking) tar(archive string, file *os.File, _ int64) error {
	var names []string
	note := func(h *tar.Header, _ io.Reader) error { names = append(names, h.Name); return nil }
	if err := eachMember(archive, file, note); err != nil {
		return err
	}
	shared := sharedDirectory(names)
	return eachMember(archive, file, func(h *tar.Header, content io.Reader) error {
		return u.member(archive, strings.TrimPrefix(h.Name, shared),
			func() (io.ReadCloser, error) { return io.NopCloser(content), nil })
	})
}

// eachMember calls visit with each file of a tar archive, which may be compressed with gzip. It
// limits how many bytes it reads, because the lengths that an archive states may be wrong.
func eachMember(archive string, file *os.File, visit func(*tar.Header, io.Reader) error) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	buffered := bufio.NewReader(file)
	var content io.Reader = buffered
	if magic, _ := buffered.Peek(2); string(magic) == "\x1f\x8b" {
		unzipped, err := gzip.NewReader(buffered)
		if err != nil {
			return broken(archive, err)
		}
		content = unzipped
	}
	bounded := &io.LimitedReader{R: content, N: 2*maxCodeBytes + 1}
	for n, all := 0, tar.NewReader(bounded); ; n++ {
		h, err := all.Next()
		switch {
		case errors.Is(err, io.EOF) && n > 0:
			return nil
		case bounded.N <= 0, n > 10*maxCodeFiles:
			return tooLarge()
		case err != nil:
			return broken(archive, err)
		case h.Typeflag == tar.TypeDir, h.Typeflag == tar.TypeXGlobalHeader:
			continue
		case h.Typeflag != tar.TypeReg:
			return notAFile(archive, h.Name)
		}
		if err := visit(h, all); err != nil {
			if bounded.N <= 0 {
				return tooLarge()
			}
			return broken(archive, err)
		}
	}
}

func notAFile(archive, name string) error {
	return domain.Errorf(domain.InvalidArgument, "%s: %.128q is a link or device: replace it with a regular file", archive,
		name)
}

func tooLarge() error {
	return domain.Errorf(domain.InvalidArgument,
		"the code has more than %d files or %d bytes: remove files that scoring does not need", maxCodeFiles,
		maxCodeBytes)
}

// sharedDirectory returns the top-level directory that contains all files with these names, with a
// slash at the end; "" when there is none.
func sharedDirectory(names []string) string {
	if len(names) == 0 {
		return ""
	}
	first, _, nested := strings.Cut(strings.TrimPrefix(names[0], "./"), "/")
	if !nested || !domain.CheckCodePath(first) {
		return ""
	}
	prefix := first + "/"
	if strings.HasPrefix(names[0], "./") {
		prefix = "./" + prefix
	}
	for _, name := range names {
		if !strings.HasPrefix(name, prefix) {
			return ""
		}
	}
	return prefix
}

// member writes a file of an archive to the directory. It skips hidden files, and files below
// __pycache__ and __MACOSX.
func (u *unpacking) member(archive, name string, open func() (io.ReadCloser, error)) error {
	name = strings.TrimPrefix(name, "./")
	for _, part := range strings.Split(name, "/") {
		if part == "__pycache__" || part == "__MACOSX" || len(part) > 1 && part[0] == '.' && part[1] != '.' {
			u.notes = append(u.notes, "skipped: "+name)
			return nil
		}
	}
	if !domain.CheckCodePath(name) {
		return domain.Errorf(domain.InvalidArgument, "%s: the name %.128q %s", archive, name, domain.CodePathRule)
	}
	content, err := open()
	if err != nil {
		return err
	}
	defer content.Close()
	return u.write(name, content)
}

// nameError returns an InvalidArgument error when a file name is too long, or is already the name
// of another file or directory; clash is the message of the second case. It returns any other err
// unchanged, such as that of a full disk, so that the build is tried again.
func nameError(err error, name, clash string) error {
	switch {
	case errors.Is(err, syscall.ENAMETOOLONG):
		return domain.Errorf(domain.InvalidArgument, "%s: a name in this path has more than 255 bytes: shorten it", name)
	case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EEXIST), errors.Is(err, syscall.EISDIR):
		return domain.Errorf(domain.InvalidArgument, "%s: %s", name, clash)
	}
	return err
}

// write creates a file below dir. It returns an error when name is not a relative path below dir.
func (u *unpacking) write(name string, content io.Reader) error {
	if !domain.CheckCodePath(name) {
		return domain.Errorf(domain.InvalidArgument, "the name %.128q of a file %s", name, domain.CodePathRule)
	}
	if len(u.names) == maxCodeFiles {
		return tooLarge()
	}
	target := filepath.Join(u.dir, filepath.FromSlash(name))
	if err := os.MkdirAll(filepath.Dir(target), 0o700); err != nil {
		return nameError(err, name, "the name of a directory in this path is also the name of a file: rename one of them")
	}
	file, err := os.OpenFile(target, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nameError(err, name, "occurs twice, or is also the name of a directory: rename or remove one of them")
	}
	n, err := io.Copy(disk.Watch(file), io.LimitReader(content, maxCodeBytes-u.bytes+1))
	u.bytes += n
	if err = errors.Join(err, file.Close()); err == nil && u.bytes > maxCodeBytes {
		return tooLarge()
	}
	if err != nil {
		return fmt.Errorf("%s: %w", path.Base(name), err)
	}
	u.names = append(u.names, name)
	return nil
}

package tasks

import (
	"archive/tar"
	"compress/gzip"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestUnpackErrors checks that only faults of the uploaded files are reported as errors of the user.
// The build is retried after other errors.
func TestUnpackErrors(t *testing.T) {
	onDisk := func(errno syscall.Errno) error { return &fs.PathError{Op: "open", Path: "/tmp/x", Err: errno} }
	clash := func(errno syscall.Errno) error { return nameError(onDisk(errno), "a/b.py", "occurs twice") }
	archive := func(err error) error { return broken("code.zip", fmt.Errorf("b.py: %w", err)) }
	for what, c := range map[string]struct {
		err  error
		user string // message of the user's error; "" for an error after which the build is retried
	}{
		"a file is a directory":    {clash(syscall.ENOTDIR), "a/b.py: occurs twice"},
		"a file exists":            {clash(syscall.EEXIST), "a/b.py: occurs twice"},
		"a directory is a file":    {clash(syscall.EISDIR), "a/b.py: occurs twice"},
		"a long name":              {clash(syscall.ENAMETOOLONG), "a/b.py: a name in this path has more than 255 bytes"},
		"no space for a directory": {clash(syscall.ENOSPC), ""},
		"no inodes of the quota":   {clash(syscall.EDQUOT), ""},
		"no permission":            {clash(syscall.EACCES), ""},
		"too many open files":      {clash(syscall.EMFILE), ""},
		"a damaged archive":        {archive(tar.ErrHeader), "code.zip: is not a valid archive"},
		"a damaged gzip file":      {archive(gzip.ErrChecksum), "code.zip: is not a valid archive"},
		"too many files":           {archive(tooLarge()), "the code has more than 500 files"},
		"no space for a member":    {archive(onDisk(syscall.ENOSPC)), ""},
	} {
		t.Run(what, func(t *testing.T) {
			if c.user == "" {
				require.Equal(t, domain.Unknown, domain.CodeOf(c.err))
				var cause syscall.Errno
				require.ErrorAs(t, c.err, &cause)
				return
			}
			var fault *domain.Error
			require.ErrorAs(t, c.err, &fault)
			require.Equal(t, domain.InvalidArgument, fault.Code)
			require.Contains(t, fault.Message, c.user)
		})
	}
}

// TestUnpackIntoMissingFileSystem checks that a failure to create the files of an archive is not
// reported as an error of the user.
func TestUnpackIntoMissingFileSystem(t *testing.T) {
	if _, err := os.Stat("/proc/self"); err != nil {
		t.Skip("needs /proc, in which no directory can be created")
	}
	file, err := os.Create(filepath.Join(t.TempDir(), "code.tar"))
	require.NoError(t, err)
	defer file.Close()
	w := tar.NewWriter(file)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "main.py", Mode: 0o644, Typeflag: tar.TypeReg}))
	require.NoError(t, w.Close())
	u := &unpacking{dir: "/proc/anneal-test"}
	err = u.tar("code.tar", file, 0)
	var local *fs.PathError
	require.ErrorAs(t, err, &local)
	require.Equal(t, domain.Unknown, domain.CodeOf(err))

	u = &unpacking{dir: t.TempDir()}
	require.NoError(t, u.write("main.py", strings.NewReader("")))
	for _, name := range []string{"main.py", "main.py/x.py", strings.Repeat("x", 256)} {
		err := u.write(name, strings.NewReader(""))
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), "%s: %v", name, err)
	}
}

//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Where things are in a sandbox.
const (
	codeDir    = "/code"
	socketFile = 3 // descriptor of the socket for orders and answers
	filterFile = 4 // descriptor from which bubblewrap reads the filter of system calls
)

// A place is how bubblewrap is to be called, and what it reads.
type place struct {
	args   []string
	filter *os.File
}

// inside is the sandbox around a worker, whose code lies in dir: read-only
// system programs, an empty /tmp, and nothing else. done lets go of it.
func (s *Sandbox) inside(bwrap, dir string) (p place, done func(), err error) {
	size := strconv.FormatInt(s.options.FileBytes, 10)
	p.args = []string{
		"--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent", "--new-session", "--clearenv",
		"--uid", "65534", "--gid", "65534", "--cap-drop", "ALL", "--hostname", "sandbox",
		"--ro-bind", "/usr", "/usr",
	}
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		info, err := os.Lstat(name)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return p, nil, err
			}
			p.args = append(p.args, "--symlink", target, name)
		default:
			p.args = append(p.args, "--ro-bind", name, name)
		}
	}
	p.args = append(p.args,
		"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
		"--proc", "/proc", "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys",
		"--dev", "/dev", "--size", size, "--tmpfs", "/dev/shm", "--remount-ro", "/dev",
		"--size", size, "--tmpfs", "/tmp",
	)
	if dir != "" {
		p.args = append(p.args, "--ro-bind", dir, codeDir)
	}
	p.args = append(p.args, "--remount-ro", "/", "--chdir", "/tmp", "--seccomp", strconv.Itoa(filterFile))
	for _, pair := range environment() {
		p.args = append(p.args, "--setenv", pair[0], pair[1])
	}
	if p.filter, err = memoryFile(filter()); err != nil {
		return p, nil, err
	}
	return p, func() { _ = p.filter.Close() }, nil
}

// memoryFile is a file with some content that no folder holds.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("filter", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "filter")
	if _, err = file.Write(content); err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

//go:build linux && (amd64 || arm64)

package sandbox

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Paths and descriptors in the sandbox of an evaluator.
const (
	codeDir    = "/code"
	socketFile = 3 // descriptor of the harness's end of the socket to this process
	filterFile = 4 // descriptor of the seccomp filter, which bubblewrap reads
)

// nobody is the user ID of programs in a user namespace.
const nobody = "65534"

// args returns bubblewrap's options. filter is the descriptor of the seccomp filter.
func (v confinement) args(filter int) ([]string, error) {
	args := []string{
		"--unshare-pid", "--unshare-ipc", "--unshare-uts", "--unshare-cgroup-try",
		"--die-with-parent", "--new-session", "--hostname", "sandbox", "--cap-drop", "ALL",
	}
	if !v.network {
		args = append(args, "--unshare-net")
	}
	if v.privileged { // setpriv needs the capabilities to change the user, and drops them after that
		args = append(args, "--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID", "--cap-add", "CAP_SETPCAP")
	} else {
		args = append(args, "--unshare-user", "--disable-userns", "--uid", nobody, "--gid", nobody)
	}
	args = append(args, "--ro-bind", "/usr", "/usr")
	for _, name := range []string{"/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		info, err := os.Lstat(name)
		switch {
		case err != nil:
		case info.Mode()&os.ModeSymlink != 0:
			target, err := os.Readlink(name)
			if err != nil {
				return nil, err
			}
			args = append(args, "--symlink", target, name)
		default:
			args = append(args, "--ro-bind", name, name)
		}
	}
	args = append(args, parents("/etc/ld.so.cache")...)
	size := strconv.FormatInt(v.tmp, 10)
	args = append(args,
		"--ro-bind-try", "/etc/ld.so.cache", "/etc/ld.so.cache", "--ro-bind-try", "/etc/alternatives", "/etc/alternatives",
		"--proc", "/proc", "--tmpfs", "/proc/sys", "--remount-ro", "/proc/sys",
		"--dev", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/dev/shm",
	)
	for _, device := range v.devices {
		args = append(args, "--dev-bind", device, device)
	}
	if len(v.devices) > 0 {
		args = append(args, "--ro-bind-try", "/sys", "/sys")
	}
	args = append(args, "--remount-ro", "/dev", "--perms", "1777", "--size", size, "--tmpfs", "/tmp")
	for name, fd := range v.texts {
		args = append(args, parents(name)...)
		args = append(args, "--perms", "0644", "--file", strconv.Itoa(fd), name)
	}
	for _, b := range v.binds {
		option := "--ro-bind"
		if b.write {
			option = "--bind"
		}
		args = append(append(args, parents(b.at)...), option, b.from, b.at)
	}
	for _, pair := range v.env {
		args = append(args, "--setenv", pair[0], pair[1])
	}
	return append(args, "--remount-ro", "/", "--chdir", v.dir, "--seccomp", strconv.Itoa(filter)), nil
}

// parents returns the options that create the missing parent directories of a path with the mode
// 0755.
func parents(path string) (args []string) {
	at := ""
	for _, part := range strings.Split(strings.Trim(filepath.Dir(path), "/"), "/") {
		if part == "" {
			continue
		}
		at += "/" + part
		args = append(args, "--perms", "0755", "--dir", at)
	}
	return args
}

// bwrapArgs returns bubblewrap's options for a worker with the code in dir, and a file with the
// seccomp filter, which the caller closes.
func (s *Sandbox) bwrapArgs(dir string) ([]string, *os.File, error) {
	v := confinement{tmp: s.options.FileBytes, dir: "/tmp", env: environment()}
	if dir != "" {
		v.binds = []bind{{from: dir, at: codeDir}}
	}
	args, err := v.args(filterFile)
	if err != nil {
		return nil, nil, err
	}
	file, err := filterFileOf(extraCalls{})
	return append([]string{"--clearenv"}, args...), file, err
}

// filterFileOf returns a file with the seccomp filter that also allows the system calls c.
func filterFileOf(c extraCalls) (*os.File, error) { return memoryFile(filter(c)) }

// memoryFile returns a file in memory with the given content.
func memoryFile(content []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("sandbox", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "sandbox")
	if _, err = file.Write(content); err == nil {
		_, err = file.Seek(0, 0)
	}
	if err != nil {
		_ = file.Close()
		return nil, err
	}
	return file, nil
}

// linkFile creates a hard link named name to an open file.
func linkFile(file *os.File, name string) error {
	return unix.Linkat(unix.AT_FDCWD, "/proc/self/fd/"+strconv.Itoa(int(file.Fd())), unix.AT_FDCWD, name,
		unix.AT_SYMLINK_FOLLOW)
}

package disk

import "golang.org/x/sys/unix"

// identify returns the identity of a directory; ok is false if the directory cannot be read, or its
// file system does not record when it was created.
func identify(path string) (id identity, ok bool) {
	var s unix.Statx_t
	const wanted = unix.STATX_INO | unix.STATX_BTIME
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_SYMLINK_NOFOLLOW, wanted, &s)
	if err != nil || s.Mask&wanted != wanted {
		return identity{}, false
	}
	return identity{device: unix.Mkdev(s.Dev_major, s.Dev_minor), inode: s.Ino,
		born: s.Btime.Sec*1e9 + int64(s.Btime.Nsec)}, true
}

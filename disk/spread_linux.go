package disk

import (
	"os"

	"golang.org/x/sys/unix"
)

// topDir is the attribute T of a directory: see Spread.
const topDir = 0x00020000

// Spread asks the file system to place the subdirectories of a directory far from one another, as those
// of the root directory (chattr +T). ext4 creates a file in the block group of its directory, and
// without a journal it tries each inode there that was deleted within the last minutes. So a
// directory that is near one in which other programs delete files, such as /tmp, makes each file many
// times as expensive. An existing subdirectory stays where it is. Other file systems ignore it.
func Spread(dir string) {
	file, err := os.Open(dir)
	if err != nil {
		return
	}
	defer file.Close()
	if flags, err := unix.IoctlGetInt(int(file.Fd()), unix.FS_IOC_GETFLAGS); err == nil && flags&topDir == 0 {
		_ = unix.IoctlSetPointerInt(int(file.Fd()), unix.FS_IOC_SETFLAGS, flags|topDir)
	}
}

package integrity

import (
	"fmt"
	"io/fs"
	"syscall"
)

// inodeOf returns the inode of a file and the time of its last change, which programs cannot set.
func inodeOf(info fs.FileInfo) string {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return ""
	}
	return fmt.Sprint(stat.Ino, stat.Ctim.Nano())
}

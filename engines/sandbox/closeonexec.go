package sandbox

import (
	"os"
	"strconv"
	"syscall"
)

// closeOnExec sets the flag close-on-exec of the descriptors that this process has inherited, so
// that programs do not inherit them. Go sets the flag only for descriptors that it opens itself.
func closeOnExec() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // without /proc, the inherited descriptors are unknown
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

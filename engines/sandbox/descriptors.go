package sandbox

import (
	"os"
	"strconv"
	"syscall"
)

// keepDescriptors keeps from programs what this process was started with beside its standard
// streams: Go closes for them what it opened itself, and nothing else.
func keepDescriptors() {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return // no such thing on this system
	}
	for _, entry := range entries {
		if fd, err := strconv.Atoi(entry.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
}

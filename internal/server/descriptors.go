package server

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"anneal/api/connection"

	"golang.org/x/sys/unix"
)

// File descriptors are divided so that clients can never exhaust those of the log, because a
// JetStream store that cannot open its files is damaged. Of the descriptors that are not reserved,
// a third is for HTTP connections, a third for NATS, and a third for the files that requests read
// and write.
const (
	reservedDescriptors = 256   // always kept free for the log
	minDescriptors      = 512   // required to start a server
	maxHTTPConnections  = 4096  // default limit of --max-connections
	maxNATSConnections  = 16384 // limit of NATS connections of nodes and readers
	descriptorLook      = 100 * time.Millisecond
)

// A descriptorPlan limits the numbers of connections.
type descriptorPlan struct {
	limit      int // descriptors of this process
	http, nats int
}

// planDescriptors returns a division of the process's file descriptor limit. The Go runtime has
// raised the soft limit to the hard one before main.
func planDescriptors() (descriptorPlan, error) {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return descriptorPlan{}, fmt.Errorf("read the limit of file descriptors: %w", err)
	}
	return shareDescriptors(int(min(limit.Cur, 1<<30)))
}

func shareDescriptors(limit int) (descriptorPlan, error) {
	if limit < minDescriptors {
		return descriptorPlan{}, fmt.Errorf(
			"this process may open %d files and connections, and needs at least %d: raise the limit (ulimit -n %d, or "+
				"LimitNOFILE= of its systemd unit)", limit, minDescriptors, 65536)
	}
	third := (limit - reservedDescriptors) / 3
	return descriptorPlan{limit: limit, http: min(third, maxHTTPConnections), nats: min(third, maxNATSConnections)}, nil
}

// connectionLimits returns the limits of the flags, if the descriptors suffice for them.
func (p descriptorPlan) connectionLimits(flags Flags) (connection.Limits, error) {
	limits := connection.Limits{Total: p.http, PerAddress: flags.maxConnectionsPerAddress,
		Spare: p.spare()}
	if connections := flags.maxConnections; connections > 0 {
		if available := p.limit - reservedDescriptors - p.nats; connections > available {
			return limits, fmt.Errorf(
				"--max-connections %d exceeds the limit of %d, which the process's %d file descriptors allow: raise the "+
					"limit (ulimit -n), or lower the flag", connections, available, p.limit)
		}
		limits.Total = connections
	}
	if limits.PerAddress == 0 {
		limits.PerAddress = max(1, limits.Total/4)
	}
	return limits, nil
}

// spare returns a function that reports whether more descriptors are free than are reserved. The
// function counts at most once every descriptorLook. Where it cannot count, it returns true, unless
// the process is out of descriptors.
func (p descriptorPlan) spare() func() bool {
	var mu sync.Mutex
	var looked time.Time
	free := true
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(looked) >= descriptorLook {
			looked = now
			open, err := openDescriptors()
			free = err == nil && p.limit-open > reservedDescriptors || err != nil && !outOfDescriptors(err)
		}
		return free
	}
}

// openDescriptors returns the number of open descriptors of this process, on Linux.
func openDescriptors() (int, error) {
	dir, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	return len(names), err
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

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

// File descriptors are divided so that clients can never use up those of the log, because a
// JetStream store that cannot open its files is damaged. Of the descriptors that are not reserved,
// HTTP connections get a third, NATS connections a third, and the files that requests read and
// write a third.
const (
	reservedDescriptors = 256   // descriptors that are always kept free for the log
	minDescriptors      = 512   // minimum number of descriptors with which a server starts
	maxHTTPConnections  = 4096  // upper bound of the default of --max-connections
	maxNATSConnections  = 16384 // maximum number of NATS connections of nodes and readers
	descriptorInterval  = 100 * time.Millisecond
)

// A descriptorPlan has the maximum numbers of connections for the file descriptors of this process.
type descriptorPlan struct {
	limit      int // number of descriptors that this process may open
	http, nats int
}

// planDescriptors divides the file descriptors of this process. The Go runtime has raised the soft
// limit to the hard limit before main.
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

// connectionLimits returns the maximum numbers of HTTP connections that the flags set. It returns
// an error if there are not enough descriptors for them.
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

// spare returns a function that reports whether more descriptors are free than are reserved for the
// log. The function counts them at most once every descriptorInterval. On a system where it cannot
// count, it returns true unless the process has no descriptors left.
func (p descriptorPlan) spare() func() bool {
	var mu sync.Mutex
	var looked time.Time
	free := true
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.Sub(looked) >= descriptorInterval {
			looked = now
			open, err := openDescriptors()
			free = err == nil && p.limit-open > reservedDescriptors || err != nil && !outOfDescriptors(err)
		}
		return free
	}
}

// openDescriptors returns the number of open descriptors of this process. It works only on Linux.
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

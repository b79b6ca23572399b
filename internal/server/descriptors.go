package server

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"anneal/api"
)

// File descriptors are shared out so that clients can never take those of the
// log: a JetStream store that cannot open its files is damaged. A third of what
// is not reserved goes to HTTP connections, a third to NATS, and a third is
// left for the files that requests read and write.
const (
	reservedDescriptors = 256   // free at any time for the log, whatever else is open
	minDescriptors      = 512   // without which a server does not start
	maxHTTPConnections  = 4096  // unless --max-connections says otherwise
	maxNATSConnections  = 16384 // of nodes and readers
	descriptorLook      = 100 * time.Millisecond
)

// A descriptorPlan says how many connections there may be.
type descriptorPlan struct {
	limit      int // descriptors of this process
	http, nats int
}

// planDescriptors divides the file descriptor limit of the process. The Go runtime has
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
		return descriptorPlan{}, fmt.Errorf("this process may open %d files and connections, and needs at least %d: raise the limit (ulimit -n %d, or LimitNOFILE= of its systemd unit)", limit, minDescriptors, 65536)
	}
	third := (limit - reservedDescriptors) / 3
	return descriptorPlan{limit: limit, http: min(third, maxHTTPConnections), nats: min(third, maxNATSConnections)}, nil
}

// connectionLimits are those of the flags, as far as the descriptors allow.
func (s *Server) connectionLimits() (api.ConnectionLimits, error) {
	limits := api.ConnectionLimits{Total: s.descriptors.http, PerAddress: s.flags.maxConnectionsPerAddress, Spare: s.descriptors.spare()}
	if most := s.flags.maxConnections; most > 0 {
		if room := s.descriptors.limit - reservedDescriptors - s.descriptors.nats; most > room {
			return limits, fmt.Errorf("--max-connections %d is more than the %d that this process's limit of %d file descriptors leaves: raise the limit (ulimit -n), or lower the flag", most, room, s.descriptors.limit)
		}
		limits.Total = most
	}
	if limits.PerAddress == 0 {
		limits.PerAddress = max(1, limits.Total/4)
	}
	return limits, nil
}

// spare tells whether more descriptors are free than are reserved. It looks at
// most every descriptorLook; where it cannot look it says yes.
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

// openDescriptors counts the descriptors of this process, on Linux.
func openDescriptors() (int, error) {
	folder, err := os.Open("/proc/self/fd")
	if err != nil {
		return 0, err
	}
	defer folder.Close()
	names, err := folder.Readdirnames(-1)
	return len(names), err
}

func outOfDescriptors(err error) bool {
	return errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE)
}

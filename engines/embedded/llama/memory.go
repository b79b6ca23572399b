package llama

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"anneal/domain"
)

// Bytes of memory for each parameter, at the most. A model to be served is read
// as 32 bits and packed beside that. One in training is packed twice; where all
// parameters are trained, each core keeps a gradient, and the optimiser three
// numbers more.
const (
	servingBytes  = 8
	trainingBytes = 12
)

// Fits answers a fault with figures when the model needs more memory than is
// free: FailedPrecondition when this machine has never so much, else
// ResourceExhausted.
func (c *Config) Fits() error { return c.within(servingBytes, machineMemory(), "serve") }

// FitsTraining is Fits for a training: of an adapter, or of all parameters on
// so many cores.
func (c *Config) FitsTraining(adapter bool, cores int) error {
	if adapter {
		return c.within(trainingBytes, machineMemory(), "tune an adapter on")
	}
	return c.within(trainingBytes+4*(3+cores), machineMemory(), "train all of")
}

// A memory is a machine's, in bytes; 0 is not known.
type memory struct{ free, total int64 }

// within holds what the model needs against the memory.
func (c *Config) within(perParameter int, m memory, doing string) error {
	need := c.Parameters() * int64(perParameter)
	if m.free == 0 || need <= m.free {
		return nil
	}
	f := domain.Faultf(domain.ResourceExhausted,
		"to %s this model the embedded engine needs %s of memory (%d parameters, %d bytes each), and the machine has %s free of %s: use a machine with more, or a smaller model",
		doing, gibibytes(need), c.Parameters(), perParameter, gibibytes(m.free), gibibytes(m.total))
	if m.total > 0 && need > m.total {
		f.Code = domain.FailedPrecondition
	}
	f.Reason = "MODEL_TOO_LARGE"
	return f
}

func gibibytes(n int64) string { return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30)) }

// machineMemory is what Linux says there is and can be had without swapping, or
// what its control group allows when that is less.
func machineMemory() memory {
	m := memoryIn("/proc/meminfo")
	limit, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")
	if limit > 0 && limit < m.total {
		m.total, m.free = limit, max(min(m.free, limit-used), 1)
	}
	return m
}

// memoryIn reads a file such as /proc/meminfo.
func memoryIn(path string) (m memory) {
	f, err := os.Open(path)
	if err != nil {
		return m
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "MemTotal:":
			m.total = kib << 10
		case "MemAvailable:":
			m.free = kib << 10
		}
	}
	return m
}

// number is the content of a file that holds one; 0 when it does not.
func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

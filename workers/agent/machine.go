package agent

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"time"

	"anneal/domain"
)

// capacityOf is what this machine has: cores and memory within the limits of
// its control group, and accelerators as given or as found.
func capacityOf(accelerators map[string]int) (domain.Resources, error) {
	memory, err := memoryMiB("/proc/meminfo", "/sys/fs/cgroup/memory.max")
	if err != nil {
		return domain.Resources{}, err
	}
	if accelerators == nil {
		accelerators = findAccelerators()
	}
	// GOMAXPROCS follows the group's CPU limit, and the mask of allowed cores.
	return domain.Resources{CPUMilli: int64(runtime.GOMAXPROCS(0)) * 1000, MemoryMiB: memory, Accelerators: maps.Clone(accelerators)}, nil
}

// memoryMiB is the machine's memory, or the group's limit when that is less.
func memoryMiB(meminfo, groupLimit string) (int64, error) {
	data, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, fmt.Errorf("the machine's memory: %w", err)
	}
	var memory int64
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("the machine's memory: %w", err)
			}
			memory = kib >> 10
		}
	}
	if data, err := os.ReadFile(groupLimit); err == nil {
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil { // "max" is none
			memory = min(memory, limit>>20)
		}
	}
	return memory, nil
}

// findAccelerators asks the driver's tool; a machine without it has none.
func findAccelerators() map[string]int {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=name,memory.total", "--format=csv,noheader").Output()
	if err != nil {
		return nil
	}
	return accelerators(out)
}

// accelerators reads lines like "NVIDIA H100 80GB HBM3, 81559 MiB".
func accelerators(list []byte) map[string]int {
	found := map[string]int{}
	for line := range bytes.Lines(list) {
		name, memory, ok := strings.Cut(strings.TrimSpace(string(line)), ",")
		if !ok {
			continue
		}
		mib, _ := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(memory), " MiB"), 10, 64)
		found[acceleratorType(strings.TrimSpace(name), mib)]++
	}
	if len(found) == 0 {
		return nil
	}
	return found
}

// acceleratorType is the interface's name of a device. One that it has no name
// for keeps its own: nothing asks for it by accident.
func acceleratorType(name string, memoryMiB int64) string {
	words := strings.FieldsFunc(strings.ToUpper(name), func(r rune) bool { return r == ' ' || r == '-' || r == '_' })
	for _, word := range words {
		switch word {
		case "A100":
			if memoryMiB > 60_000 {
				return "VENDOR_A_A100_80GB"
			}
			return "VENDOR_A_A100_40GB"
		case "H100":
			return "VENDOR_A_H100_80GB"
		case "H200":
			return "VENDOR_A_H200_141GB"
		case "A10G":
			return "VENDOR_A_A10G_24GB"
		case "L4":
			return "VENDOR_A_L4_24GB"
		case "B200":
			return "VENDOR_A_B200_180GB"
		case "B300":
			return "VENDOR_A_B300_288GB"
		case "GB200":
			return "VENDOR_A_GB200"
		case "GB300":
			return "VENDOR_A_GB300"
		}
	}
	return name
}

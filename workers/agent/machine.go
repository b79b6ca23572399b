package agent

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// capacityOf returns what the machine offers: CPU cores and memory within the limits of the
// process's cgroup, and its accelerators.
func capacityOf(accelerators []engines.Device) (domain.Resources, error) {
	memory, err := memoryMiB("/proc/meminfo", "/sys/fs/cgroup/memory.max")
	if err != nil {
		return domain.Resources{}, err
	}
	var count map[string]int
	for _, device := range accelerators {
		if count == nil {
			count = map[string]int{}
		}
		count[device.Type]++
	}
	// GOMAXPROCS is the number of cores that the cgroup's CPU limit and the CPU affinity allow.
	return domain.Resources{CPUMilli: int64(runtime.GOMAXPROCS(0)) * 1000, MemoryMiB: memory, Accelerators: count}, nil
}

// memoryMiB returns the memory of the machine in MiB, or the memory limit of the cgroup when that
// is lower. meminfo and groupLimit are the paths of the files to read.
func memoryMiB(meminfo, groupLimit string) (int64, error) {
	data, err := os.ReadFile(meminfo)
	if err != nil {
		return 0, fmt.Errorf("read the memory size of the machine: %w", err)
	}
	var memory int64
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "MemTotal:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(rest), " kB"), 10, 64)
			if err != nil {
				return 0, fmt.Errorf("read the memory size of the machine: %w", err)
			}
			memory = kib >> 10
		}
	}
	if data, err := os.ReadFile(groupLimit); err == nil {
		// not a number when it is "max", which means no limit
		if limit, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err == nil {
			memory = min(memory, limit>>20)
		}
	}
	return memory, nil
}

// findAccelerators returns the devices that nvidia-smi reports, without those that
// CUDA_VISIBLE_DEVICES excludes; nil when nvidia-smi fails.
func findAccelerators() []driverDevice {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "nvidia-smi", "--query-gpu=index,uuid,name,memory.total",
		"--format=csv,noheader").Output()
	if err != nil {
		return nil
	}
	all := accelerators(out)
	if visible, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		return visibleOf(all, visible)
	}
	return all
}

// A driverDevice is a device of the machine with the UUID that the driver gives it.
type driverDevice struct {
	engines.Device
	uuid string
}

// accelerators parses the output of nvidia-smi, with lines like "0, GPU-5a3c…, NVIDIA H100 80GB
// HBM3, 81559 MiB".
func accelerators(list []byte) (all []driverDevice) {
	for line := range bytes.Lines(list) {
		fields := strings.Split(strings.TrimSpace(string(line)), ", ")
		if len(fields) != 4 {
			continue
		}
		index, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		mib, _ := strconv.ParseInt(strings.TrimSuffix(fields[3], " MiB"), 10, 64)
		all = append(all, driverDevice{engines.Device{Type: acceleratorType(fields[2], mib), Index: index}, fields[1]})
	}
	return all
}

func devicesOf(all []driverDevice) (devices []engines.Device) {
	for _, one := range all {
		devices = append(devices, one.Device)
	}
	return devices
}

// visibleOf returns the devices that visible, the value of CUDA_VISIBLE_DEVICES, selects by index
// or UUID. Like the driver, it ignores the rest of the list after an unknown device.
func visibleOf(all []driverDevice, visible string) (devices []driverDevice) {
	for word := range strings.SplitSeq(visible, ",") {
		word = strings.TrimSpace(word)
		at := slices.IndexFunc(all, func(one driverDevice) bool {
			return word == strconv.Itoa(one.Index) || strings.HasPrefix(word, "GPU-") && strings.HasPrefix(one.uuid,
				word)
		})
		if at < 0 {
			break
		}
		devices = append(devices, all[at])
	}
	return devices
}

// acceleratorType returns the accelerator type of a device in the API, from the name and memory
// that the driver reports. For an unknown device it returns the driver's name.
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

package agent

import (
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/workers/protocol"
)

func TestAccelerators(t *testing.T) {
	device := func(kind string, index int) engines.Device { return engines.Device{Type: kind, Index: index} }
	for name, one := range map[string]struct {
		list string
		want []engines.Device
	}{
		"none": {"", nil},
		"a server": {"0, GPU-1, NVIDIA H100 80GB HBM3, 81559 MiB\n1, GPU-2, NVIDIA H100 80GB HBM3, 81559 MiB\n",
			[]engines.Device{device("VENDOR_A_H100_80GB", 0), device("VENDOR_A_H100_80GB", 1)}},
		"mixed": {"0, GPU-1, NVIDIA A100-SXM4-80GB, 81920 MiB\n1, GPU-2, NVIDIA A100-PCIE-40GB, 40960 MiB\n2, " +
			"GPU-3, NVIDIA A10G, 23028 MiB\n3, GPU-4, NVIDIA L4, 23034 MiB\n",
			[]engines.Device{device("VENDOR_A_A100_80GB", 0), device("VENDOR_A_A100_40GB", 1),
				device("VENDOR_A_A10G_24GB", 2), device("VENDOR_A_L4_24GB", 3)}},
		"newer": {"0, GPU-1, NVIDIA H200, 143771 MiB\n1, GPU-2, NVIDIA B200, 183359 MiB\n2, GPU-3, NVIDIA GB200, " +
			"189471 MiB\n",
			[]engines.Device{device("VENDOR_A_H200_141GB", 0), device("VENDOR_A_B200_180GB", 1),
				device("VENDOR_A_GB200", 2)}},
		"unknown": {"0, GPU-1, Tesla T4, 15360 MiB\n1, GPU-2, NVIDIA L40S, 46068 MiB\n2, GPU-3, NVIDIA A10, 23028 " +
			"MiB\n",
			[]engines.Device{device("Tesla T4", 0), device("NVIDIA L40S", 1), device("NVIDIA A10", 2)}},
		"an error": {"No devices were found\n", nil},
	} {
		require.Equal(t, one.want, devicesOf(accelerators([]byte(one.list))), name)
	}
}

// TestVisibleAccelerators checks that an agent with CUDA_VISIBLE_DEVICES reports only the visible
// devices.
func TestVisibleAccelerators(t *testing.T) {
	all := accelerators([]byte("0, GPU-aa1, NVIDIA L4, 23034 MiB\n1, GPU-bb2, NVIDIA L4, 23034 MiB\n2, GPU-cc3, " +
		"NVIDIA L4, 23034 MiB\n"))
	for visible, want := range map[string][]int{"0,1,2": {0, 1, 2}, "2, 1": {2, 1}, "GPU-bb": {1}, "GPU-cc3,0": {2, 0},
		"": nil, "-1": nil, "1,7,2": {1}, "MIG-bb2": nil} {
		var got []int
		for _, device := range visibleOf(all, visible) {
			got = append(got, device.Index)
		}
		require.Equal(t, want, got, visible)
	}
}

// TestAcceleratorNames checks that a detected device gets the name that its type has in the API.
func TestAcceleratorNames(t *testing.T) {
	for _, device := range []string{"A100", "H100", "H200", "A10G", "L4", "B200"} {
		require.True(t, slices.Contains(domain.AcceleratorTypes, acceleratorType(device, 0)), device)
	}
}

func TestMemory(t *testing.T) {
	dir := t.TempDir()
	meminfo, limit := filepath.Join(dir, "meminfo"), filepath.Join(dir, "memory.max")
	require.NoError(t, os.WriteFile(meminfo, []byte("MemTotal:       16384000 kB\nMemFree:  1 kB\n"), 0o600))
	for group, want := range map[string]int64{"": 16000, "max\n": 16000, "1073741824\n": 1024,
		"99999999999999\n": 16000} {
		require.NoError(t, os.WriteFile(limit, []byte(group), 0o600))
		mib, err := memoryMiB(meminfo, limit)
		require.NoError(t, err)
		require.Equal(t, want, mib, "%q", group)
	}
	_, err := memoryMiB(filepath.Join(dir, "missing"), limit)
	require.Error(t, err)
}

func TestAbilities(t *testing.T) {
	reads := func(context.Context, string, string) (io.ReadCloser, error) { return nil, nil }
	require.Equal(t, []string{"complete", "train", "train:gang", "train:rlor", "transcribe:simulated"},
		abilities(simulated.New(simulated.Options{}), reads))
	require.Equal(t, []string{"complete", "train", "train:gang", "train:rlor"},
		abilities(simulated.New(simulated.Options{}), nil),
		"a node that cannot decode recordings cannot transcribe")
	require.Empty(t, abilities(engines.Engine{Methods: []string{engines.DPO}}, nil))
	more := simulated.New(simulated.Options{})
	more.Methods, more.Gang = []string{engines.DPO}, ""
	require.Equal(t, []string{"complete", "train", "train:dpo"}, abilities(more, nil))
	more.Programs = []string{"vllm"}
	require.Equal(t, []string{"complete", "engine:vllm", "train", "train:dpo"}, abilities(more, nil))
}

func TestNewRefuses(t *testing.T) {
	good := Options{Node: "n1", URL: "nats://h", Dir: t.TempDir()}
	_, err := New(good)
	require.NoError(t, err)
	for field, change := range map[string]func(*Options){
		"node":         func(o *Options) { o.Node = "N 1" },
		"dir":          func(o *Options) { o.Dir = "" },
		"url":          func(o *Options) { o.URL = "" },
		"pool":         func(o *Options) { o.Pool = "both" },
		"accelerators": func(o *Options) { o.Capacity = map[string]int{"VENDOR_A_L4_24GB": 0} },
	} {
		o := good
		change(&o)
		_, err := New(o)
		require.Equal(t, domain.InvalidArgument, domain.CodeOf(err), field)
		require.Contains(t, err.Error(), field)
	}
}

// TestDirectoryIsLocked checks that only one agent can use a directory.
func TestDirectoryIsLocked(t *testing.T) {
	o := Options{Node: "n1", URL: "nats://h", Dir: t.TempDir()}
	one, err := New(o)
	require.NoError(t, err)
	other, err := New(o)
	require.NoError(t, err)
	unlock, err := one.openDir()
	require.NoError(t, err)
	_, err = other.openDir()
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	unlock()
	unlock, err = other.openDir()
	require.NoError(t, err)
	unlock()
}

// TestStartedAttempts checks that attempts of an earlier run are reported as lost until they are
// forgotten.
func TestStartedAttempts(t *testing.T) {
	job := domain.Name("accounts/a/supervisedFineTuningJobs/j")
	made := time.Date(2026, 3, 1, 12, 0, 0, 1, time.UTC)
	dir := t.TempDir()
	path, earlier := filepath.Join(dir, "begun.jsonl"), filepath.Join(dir, "begun")
	require.NoError(t, os.Mkdir(earlier, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(earlier, "cut.json"), []byte(`{"jo`), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(earlier, "j_2.json"),
		[]byte(`{"job":"accounts/a/supervisedFineTuningJobs/j","attempt":2,"made":"2026-03-01T12:00:00Z"}`), 0o600))
	first := &startedAttempts{path: path, earlierDir: earlier}
	require.NoError(t, first.open())
	require.NoDirExists(t, earlier)
	require.Equal(t, 2, first.lost()[0].Attempt, "recorded by an earlier version")
	first.forget(domain.AllocationID(job, 2))
	require.NoError(t, first.add(protocol.TrainAssignment{Job: job, Attempt: 3, CreateTime: made},
		protocol.TrainAssignment{Job: job, Attempt: 4, CreateTime: made}))
	require.Empty(t, first.lost(), "they run")
	first.forget(domain.AllocationID(job, 4))
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(path, append(content, `{"jo`...), 0o600))

	second := &startedAttempts{path: path, earlierDir: earlier}
	require.NoError(t, second.open())
	require.True(t, second.has(domain.AllocationID(job, 3)))
	require.Len(t, second.lost(), 1)
	require.Equal(t, 3, second.lost()[0].Attempt)
	require.True(t, made.Equal(second.lost()[0].CreateTime))
	second.limit = 0
	require.NoError(t, second.add(protocol.TrainAssignment{Job: job, Attempt: 5, CreateTime: made}))
	content, err = os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, 2, strings.Count(string(content), "\n"), "the file is rewritten without forgotten attempts")
	second.forget(domain.AllocationID(job, 3))
	second.forget(domain.AllocationID(job, 5))
	require.Empty(t, second.lost())
	second.close()
	third := &startedAttempts{path: path, earlierDir: earlier}
	require.NoError(t, third.open())
	require.Empty(t, third.lost())
}

package agent

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeDriver puts a shell script nvidia-smi first in PATH.
func fakeDriver(t *testing.T, script string) {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte("#!/bin/sh\n"+script), 0o755))
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

func TestReadings(t *testing.T) {
	const ecc = "1 uncorrected ECC errors since the driver was loaded: reset the device"
	const row = "a memory row could not be remapped: replace the device"
	for line, want := range map[string]string{
		"GPU-1, 41, 7, 1024, 81559, 0, No":                                          "",
		"GPU-1, 41, 7, 1024, 81559, [N/A], [N/A]":                                   "",
		"GPU-1, 41, 7, 1024, 81559, 1, No":                                          ecc,
		"GPU-1, [N/A], 7, 1024, 81559, 0, Yes":                                      row,
		"GPU-1, [GPU requires reset], 0, 0, 0, No":                                  "unreadable", // this line lacks a field
		"GPU-1, [GPU requires reset], [GPU requires reset], 0, 0, 0, No":            "the driver reports: GPU requires reset",
		"GPU-1, [GPU is lost], [GPU is lost], 0, 0, 0, No":                          "the driver reports: GPU is lost",
		"GPU-1, a, b, c, d, e, f":                                                   "unreadable",
		"Unable to determine the device handle for GPU 0000:3B:00.0: Unknown Error": "unreadable",
	} {
		got := "unreadable"
		if one, ok := parseReadings([]byte(line + "\n"))["GPU-1"]; ok {
			got = one.failure
		}
		require.Equal(t, want, got, line)
	}
	one := parseReadings([]byte("GPU-1, 41, [N/A], 0, 81559, 0, No\n"))["GPU-1"]
	require.Equal(t, 41, *one.temperature)
	require.Nil(t, one.utilization)
	require.Equal(t, 0, *one.usedMiB)
	require.Equal(t, 81559, *one.memoryMiB)
}

// TestOneLostDeviceDoesNotHideTheOthers checks that the devices are read one by one when nvidia-smi
// fails for the list because of one of them.
func TestOneLostDeviceDoesNotHideTheOthers(t *testing.T) {
	fakeDriver(t, `lost() { echo "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost"; exit 15; }
case "$*" in
*--id=GPU-1) lost ;;
*--id=GPU-2) echo "GPU-2, 41, 7, 1024, 81559, 0, No" ;;
*--id=*) echo "No devices were found"; exit 6 ;;
*) lost ;;
esac
`)
	readings, err := readDriver(t.Context(), []string{"GPU-1", "GPU-2", "GPU-3"})
	require.NoError(t, err)
	require.Len(t, readings, 2)
	require.Equal(t, "the driver reports: GPU is lost", readings["GPU-1"].failure)
	require.Equal(t, 41, *readings["GPU-2"].temperature)
}

// TestUnreadableDriver checks that a driver that is missing, fails, prints garbage or hangs gives
// an error, and no partial list.
func TestUnreadableDriver(t *testing.T) {
	for name, script := range map[string]string{
		"fails": "exit 9", "garbage": "echo '<html>'; echo 'GPU-1, x'", "empty": "exit 0",
		"hangs":                 "exec sleep 1000",
		"hangs after one line":  "echo 'GPU-1, 41, 7, 1024, 81559, 0, No'; exec sleep 1000",
		"leaves a child behind": "sleep 1000 & exec sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			fakeDriver(t, script)
			ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
			defer cancel()
			readings, err := readDriver(ctx, []string{"GPU-1", "GPU-2"})
			require.Error(t, err)
			require.Empty(t, readings)
		})
	}
	t.Run("missing", func(t *testing.T) {
		t.Setenv("PATH", t.TempDir())
		_, err := readDriver(t.Context(), []string{"GPU-1"})
		require.ErrorContains(t, err, "executable file not found")
	})
}

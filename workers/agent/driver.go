package agent

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// A reading is what the driver reports about one device. Numbers are nil if unknown.
type reading struct {
	temperature, utilization *int // °C and percent
	usedMiB, memoryMiB       *int
	failure                  string // why the device must not be used; "" when it works
}

// afterKill limits the wait for the output of a program that was killed but does not exit, or whose
// children keep its output open.
const afterKill = time.Second

// readDriver reads the state of devices with nvidia-smi, by UUID. It leaves out the devices that
// nvidia-smi cannot reach. It returns an error when it reads nothing, or not everything in time.
func readDriver(ctx context.Context, uuids []string) (map[string]reading, error) {
	out, err := query(ctx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", context.Cause(ctx))
	}
	readings := parseReadings(out)
	if len(readings) > 0 {
		return readings, nil
	}
	// One lost device can make nvidia-smi fail for the whole list.
	for _, uuid := range uuids {
		out, oneErr := query(ctx, "--id="+uuid)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("nvidia-smi: %w", context.Cause(ctx))
		}
		if one, ok := parseReadings(out)[uuid]; ok {
			readings[uuid] = one
		} else if sign := failureSign(string(out)); sign != "" && oneErr != nil {
			readings[uuid] = reading{failure: sign}
		}
	}
	if len(readings) == 0 {
		return nil, fmt.Errorf("nvidia-smi lists no device: %w", cmp.Or(err, errors.New("its list cannot be read")))
	}
	return readings, nil
}

func query(ctx context.Context, args ...string) ([]byte, error) {
	c := exec.CommandContext(ctx, "nvidia-smi", append([]string{"--query-gpu=uuid,temperature.gpu,utilization.gpu," +
		"memory.used,memory.total,ecc.errors.uncorrected.volatile.total,remapped_rows.failure",
		"--format=csv,noheader,nounits"}, args...)...)
	c.WaitDelay = afterKill
	return c.Output()
}

// parseReadings parses lines like "GPU-5a3c…, 41, 12, 1024, 81559, 0, No". It leaves out the lines
// that it cannot read.
func parseReadings(list []byte) map[string]reading {
	readings := map[string]reading{}
	for line := range bytes.Lines(list) {
		fields := strings.Split(strings.TrimSpace(string(line)), ", ")
		if len(fields) != 7 || !strings.HasPrefix(fields[0], "GPU-") {
			continue
		}
		number := func(i int) *int {
			if n, err := strconv.Atoi(fields[i]); err == nil && n >= 0 {
				return &n
			}
			return nil // [N/A]: the device does not report it
		}
		r := reading{temperature: number(1), utilization: number(2), usedMiB: number(3), memoryMiB: number(4),
			failure: failureOf(fields)}
		if r.memoryMiB != nil || r.failure != "" { // every working device reports its memory
			readings[fields[0]] = r
		}
	}
	return readings
}

// failureOf returns why a device must not be used.
func failureOf(fields []string) string {
	if sign := failureSign(strings.Join(fields[1:], ", ")); sign != "" {
		return sign
	}
	if errors, err := strconv.ParseInt(fields[5], 10, 64); err == nil && errors > 0 {
		return fmt.Sprintf("%d uncorrected ECC errors since the driver was loaded: reset the device", errors)
	}
	if strings.EqualFold(fields[6], "Yes") || fields[6] == "1" {
		return "a memory row could not be remapped: replace the device"
	}
	return ""
}

// failureSign returns the failure of a device that a text of nvidia-smi reports; "" if the text
// reports none.
func failureSign(text string) string {
	for _, sign := range []string{"GPU requires reset", "GPU is lost"} {
		if strings.Contains(text, sign) {
			return "the driver reports: " + sign
		}
	}
	return ""
}

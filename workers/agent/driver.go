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

// A reading is the state of one device as the driver reports it. A nil number is unknown.
type reading struct {
	temperature, utilization *int // °C, and percent of the time in which the device computed
	usedMiB, memoryMiB       *int
	failure                  string // why the device must not be used; "" when it works
}

// afterKill is how long to wait for the output of a killed program that does not exit, or whose
// child processes keep its output open.
const afterKill = time.Second

// readDriver reads the state of devices with nvidia-smi and returns it by the device's UUID.
// Devices that nvidia-smi does not report are missing. It returns an error when it could read no
// device, or not all of them in time.
func readDriver(ctx context.Context, uuids []string) (map[string]reading, error) {
	out, err := query(ctx)
	if ctx.Err() != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", context.Cause(ctx))
	}
	readings := parseReadings(out)
	if len(readings) > 0 {
		return readings, nil
	}
	// One failed device can make nvidia-smi fail for the whole list, so read each device alone.
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
		return nil, fmt.Errorf("nvidia-smi lists no device: %w", cmp.Or(err, errors.New("the output cannot be parsed")))
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

// parseReadings parses the output of nvidia-smi, with lines like "GPU-5a3c…, 41, 12, 1024, 81559,
// 0, No". It skips lines that it cannot parse.
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
			return nil // "[N/A]": the device does not report the value
		}
		r := reading{temperature: number(1), utilization: number(2), usedMiB: number(3), memoryMiB: number(4),
			failure: failureOf(fields)}
		if r.memoryMiB != nil || r.failure != "" { // every working device reports its memory, so this line is valid
			readings[fields[0]] = r
		}
	}
	return readings
}

// failureOf returns the reason for which a device must not be used, from its fields in the output
// of nvidia-smi; "" when it works.
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

// failureSign returns the failure of a device that an error message of nvidia-smi reports; "" when
// it reports none.
func failureSign(text string) string {
	for _, sign := range []string{"GPU requires reset", "GPU is lost"} {
		if strings.Contains(text, sign) {
			return "the driver reports: " + sign
		}
	}
	return ""
}

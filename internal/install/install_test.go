package install_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/install"
)

// maxExposure is the maximum exposure level of a unit, of 10, as `systemd-analyze security` computes
// it. A unit without hardening has 9.6.
const maxExposure = 4.0

// unitOf returns the text of the unit of a service.
func unitOf(service string) string { return string(install.Files(service)[0].Content) }

// TestUnitsOfSystemd checks the units with systemd-analyze: that they are valid, and hardened.
func TestUnitsOfSystemd(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("systemd-analyze is not installed: it is in the Debian package systemd")
	}
	for _, service := range []string{install.Server, install.Agent} {
		path := filepath.Join(t.TempDir(), install.Unit(service))
		text := strings.Replace(unitOf(service), install.Program+" ", "/bin/true ", 1) // verify requires the program
		require.Contains(t, text, "ExecStart=/bin/true ")
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		output, err := exec.CommandContext(t.Context(), analyze, "verify", "--man=no", path).CombinedOutput()
		require.NoError(t, err, "%s", output)
		require.Empty(t, string(output))
		output, err = exec.CommandContext(t.Context(), analyze, "security", "--offline=yes", "--no-pager",
			path).CombinedOutput()
		require.NoError(t, err, "%s", output)
		level := regexp.MustCompile(`Overall exposure level for \S+: ([0-9.]+)`).FindSubmatch(output)
		require.NotNil(t, level, "%s", output)
		exposure, err := strconv.ParseFloat(string(level[1]), 64)
		require.NoError(t, err)
		require.LessOrEqual(t, exposure, maxExposure)
	}
}

// TestUnitsAllowSandbox checks that the units have no setting with which bubblewrap or a GPU does
// not work.
func TestUnitsAllowSandbox(t *testing.T) {
	for _, service := range []string{install.Server, install.Agent} {
		for _, breaks := range []string{"RestrictNamespaces", "PrivateUsers", "ProtectHostname", "ProtectKernelTunables",
			"ProtectKernelLogs", "ProtectProc", "ProcSubset", "PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock",
			"MemoryDenyWriteExecute", "PrivateNetwork"} {
			require.NotRegexp(t, "(?m)^"+breaks+"=", unitOf(service))
		}
		require.Regexp(t, `(?m)^SystemCallFilter=@system-service @mount sethostname seccomp$`, unitOf(service))
		for _, has := range []string{"User=anneal", "NoNewPrivileges=yes", "CapabilityBoundingSet=", "ProtectSystem=strict",
			"ProtectHome=yes", "PrivateTmp=yes", "Restart=on-failure"} {
			require.Contains(t, unitOf(service), "\n"+has+"\n")
		}
		// the exit status of a panic is that of an invalid flag, so no status may prevent a restart
		require.NotContains(t, unitOf(service), "RestartPreventExitStatus")
		require.Contains(t, unitOf(service), "\nWorkingDirectory="+install.StateDir(service)+"\n")
		// engines keep compiled code in their home directory, and may write nowhere else
		require.Contains(t, unitOf(service), "\nEnvironment=HOME="+install.StateDir(service)+"\n")
	}
}

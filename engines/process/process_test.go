package process

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// TestMain runs as a program that starts another program, prints the other program's process ID
// and waits for its exit, if PROCESS_PARENT is set.
func TestMain(m *testing.M) {
	if os.Getenv("PROCESS_PARENT") == "" {
		os.Exit(m.Run())
	}
	p, err := Start(Command{Args: []string{"sleep", "600"}, Env: Environment(nil)})
	if err != nil {
		panic(err)
	}
	fmt.Println(p.cmd.Process.Pid)
	<-p.Done()
}

func start(t *testing.T, script string, env ...string) *Process {
	p, err := Start(Command{Args: []string{"sh", "-c", script}, Env: Environment([]string{"TAKEN_"}, env...)})
	require.NoError(t, err)
	t.Cleanup(func() { p.Stop(context.Background(), 0) })
	return p
}

// requireExited waits until no process has the ID.
func requireExited(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	}, 20*time.Second, 5*time.Millisecond)
}

func TestErrEndsWithTheLastOutput(t *testing.T) {
	p := start(t, "yes 'a line of noise' | head -n 100000; echo the reason >&2; exit 7")
	<-p.Done()
	require.ErrorContains(t, p.Err(), "exit status 7; last output: a line of noise")
	require.True(t, strings.HasSuffix(p.Err().Error(), "the reason"))
	require.Less(t, len(p.Err().Error()), 2*errorBytes)
	fine := start(t, "exit 0")
	<-fine.Done()
	require.NoError(t, fine.Err())
}

func TestStopEndsTheProcessGroup(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("reads /proc")
	}
	for name, script := range map[string]string{"that handles SIGTERM": "", "that ignores it": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			pidFile := t.TempDir() + "/pid"
			p := start(t, script+"sleep 600 & echo $! > "+pidFile+".new; mv "+pidFile+".new "+pidFile+"; wait; "+
				"while :; do sleep 600; done")
			var child int
			require.Eventually(t, func() bool {
				text, _ := os.ReadFile(pidFile)
				child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return child > 0
			}, 20*time.Second, 5*time.Millisecond)
			p.Stop(t.Context(), 200*time.Millisecond)
			<-p.Done()
			requireExited(t, child)
		})
	}
}

// TestAProgramEndsWithItsParent checks that a program is killed when its parent is killed with
// SIGKILL.
func TestAProgramEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a parent death signal")
	}
	parent := exec.Command(os.Args[0])
	parent.Env = append(os.Environ(), "PROCESS_PARENT=1")
	out, err := parent.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, parent.Start())
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	child, err := strconv.Atoi(strings.TrimSpace(line))
	require.NoError(t, err)
	require.NoError(t, parent.Process.Signal(syscall.SIGKILL))
	require.Error(t, parent.Wait())
	requireExited(t, child)
}

func TestEnvironmentInheritsOnlyWhatIsNeeded(t *testing.T) {
	t.Setenv("TAKEN_ALONG", "yes")
	t.Setenv("SECRET_TOKEN", "no")
	p := start(t, "echo $PATH$TAKEN_ALONG$SECRET_TOKEN$MORE >&2; exit 1", "MORE=more")
	<-p.Done()
	require.ErrorContains(t, p.Err(), os.Getenv("PATH")+"yesmore")
}

func TestAProgramThatIsNotInstalled(t *testing.T) {
	_, err := Find("no-such-program", "buy it")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "no-such-program is not installed, or not in PATH: buy it")
	_, err = Start(Command{Args: []string{"/no/such/program"}})
	require.ErrorContains(t, err, "/no/such/program")
}

func TestScanWholeLines(t *testing.T) {
	for output, want := range map[string][]string{
		"":               nil,
		"a\nb\n":         {"a", "b"},
		"a\r\n\nb\ntorn": {"a", "", "b"},
		"torn":           nil,
	} {
		var got []string
		lines := bufio.NewScanner(iotest.OneByteReader(strings.NewReader(output)))
		for lines.Split(ScanWholeLines); lines.Scan(); {
			got = append(got, lines.Text())
		}
		require.NoError(t, lines.Err())
		require.Equal(t, want, got, "%q", output)
	}
}

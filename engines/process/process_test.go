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

// TestMain is, when PROCESS_PARENT is set, a program that starts another one,
// tells its number and waits for its own end.
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

// gone waits until no process has the number.
func gone(t *testing.T, pid int) {
	t.Helper()
	require.Eventually(t, func() bool {
		state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		return err != nil || strings.Contains(string(state), ") Z ")
	}, 20*time.Second, 5*time.Millisecond)
}

func TestLastWords(t *testing.T) {
	p := start(t, "yes 'a line of noise' | head -n 100000; echo the reason >&2; exit 7")
	<-p.Done()
	require.ErrorContains(t, p.Err(), "exit status 7; its last words were: a line of noise")
	require.True(t, strings.HasSuffix(p.Err().Error(), "the reason"))
	require.Less(t, len(p.Err().Error()), 2*toldBytes)
	fine := start(t, "exit 0")
	<-fine.Done()
	require.NoError(t, fine.Err())
}

func TestStopEndsTheWholeGroup(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("looks into /proc")
	}
	for name, script := range map[string]string{"that listens": "", "that does not": "trap '' TERM; "} {
		t.Run(name, func(t *testing.T) {
			note := t.TempDir() + "/pid"
			p := start(t, script+"sleep 600 & echo $! > "+note+".new; mv "+note+".new "+note+"; wait; while :; do sleep 600; done")
			var child int
			require.Eventually(t, func() bool {
				text, _ := os.ReadFile(note)
				child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
				return child > 0
			}, 20*time.Second, 5*time.Millisecond)
			p.Stop(t.Context(), 200*time.Millisecond)
			<-p.Done()
			gone(t, child)
		})
	}
}

// TestAProgramEndsWithItsParent kills the parent in a way that it cannot answer.
func TestAProgramEndsWithItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux tells a program of its parent's end")
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
	gone(t, child)
}

func TestTheEnvironmentHasWhatIsNeeded(t *testing.T) {
	t.Setenv("TAKEN_ALONG", "yes")
	t.Setenv("SECRET_TOKEN", "no")
	p := start(t, "echo $PATH$TAKEN_ALONG$SECRET_TOKEN$MORE >&2; exit 1", "MORE=more")
	<-p.Done()
	require.ErrorContains(t, p.Err(), os.Getenv("PATH")+"yesmore")
}

func TestAProgramThatIsNotThere(t *testing.T) {
	_, err := Find("no-such-program", "buy it")
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "no-such-program is not installed, or not in PATH: buy it")
	_, err = Start(Command{Args: []string{"/no/such/program"}})
	require.ErrorContains(t, err, "/no/such/program")
}

func TestWholeLines(t *testing.T) {
	for said, want := range map[string][]string{
		"":               nil,
		"a\nb\n":         {"a", "b"},
		"a\r\n\nb\ntorn": {"a", "", "b"},
		"torn":           nil,
	} {
		var got []string
		lines := bufio.NewScanner(iotest.OneByteReader(strings.NewReader(said)))
		for lines.Split(WholeLines); lines.Scan(); {
			got = append(got, lines.Text())
		}
		require.NoError(t, lines.Err())
		require.Equal(t, want, got, "%q", said)
	}
}

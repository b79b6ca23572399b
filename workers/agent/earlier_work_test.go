package agent

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// countingTrainer counts how often it trains, and ends at once.
type countingTrainer struct{ runs int }

func (c *countingTrainer) Train(context.Context, engines.TrainRequest, engines.TrainWatcher) (engines.TrainResult,
	error) {
	c.runs++
	return engines.TrainResult{}, domain.Errorf(domain.Internal, "the training has begun")
}

// newTestAttempt returns an attempt of job j for four devices of a node with eight, which has no
// control plane, and its trainer.
func newTestAttempt(t *testing.T, number int) (*attempt, *countingTrainer) {
	trainer := &countingTrainer{}
	dir := t.TempDir()
	a := &Agent{options: Options{Node: "n1", Dir: dir, Engine: engines.Engine{Trainer: trainer}},
		log: slog.New(slog.DiscardHandler), wake: make(chan struct{}, 1), cache: newCache(t, dir, 1<<20),
		devices: newDevices(engines.NumberDevices(map[string]int{l4: 8}))}
	return nextAttempt(t, a, number), trainer
}

// nextAttempt returns another attempt of job j on the node of a.
func nextAttempt(t *testing.T, a *Agent, number int) *attempt {
	one := newAttempt(a, t.Context(), protocol.TrainAssignment{Job: "accounts/acme/jobs/j", Attempt: number,
		Base: protocol.FileSet{Key: "base"}, Data: protocol.FileSet{Key: "data"}, Accelerators: map[string]int{l4: 4}})
	t.Cleanup(func() {
		one.end()
		a.work.Wait()
	})
	return one
}

// begin runs the attempt. Its report never arrives, because there is no control plane.
func (t *attempt) begin(before ...*attempt) {
	t.agent.work.Go(func() { t.run(before, nil) })
	synctest.Wait()
}

func (t *attempt) logText() string {
	t.joblog.mu.Lock()
	defer t.joblog.mu.Unlock()
	return string(t.joblog.kept)
}

// TestAttemptLeavesDevicesThatAreNotReleased checks that an attempt ends after releaseTimeout if a
// hanging program of an earlier allocation still uses its devices. The end does not count as a
// failure, and the message says what the attempt has waited for.
func TestAttemptLeavesDevicesThatAreNotReleased(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, trainer := newTestAttempt(t, 2)
		hanging := "accounts/other/jobs/hanging@1"
		devices := next.agent.devices
		used, _, err := devices.acquire(t.Context(), map[string]int{l4: 5})
		require.NoError(t, err)
		devices.use(used, hanging, func(error) {})
		devices.fail(used[0], "2 uncorrected ECC errors")
		next.begin()
		time.Sleep(releaseTimeout - time.Second) // in synctest, time passes at once
		require.NotContains(t, next.logText(), "failed")
		time.Sleep(time.Second)
		synctest.Wait()
		const message = "the node did not start the attempt: earlier work did not release the accelerators within 5m0s " +
			"(" + l4 + ": 4 requested, 3 free)"
		require.Contains(t, next.logText(), "the attempt failed: "+message)
		require.NotContains(t, next.logText(), "other", "a user does not see the work of other accounts")
		require.Zero(t, trainer.runs)

		_, _, err = next.acquireDevices()
		report := next.failure(err)
		require.Equal(t, protocol.ReportFailed, report.Kind)
		require.True(t, report.Preempted, "the job has not failed")
		require.Contains(t, report.Error.Message, message)
		require.Equal(t, domain.Unavailable, report.Error.Code, "the job is queued again")
		require.False(t, next.failure(domain.Errorf(domain.Internal, "loss is NaN")).Preempted)
	})
}

// TestAttemptLeavesAnEarlierAttemptThatHangs checks that an attempt waits only releaseTimeout for
// all earlier attempts of its job to end.
func TestAttemptLeavesAnEarlierAttemptThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, trainer := newTestAttempt(t, 3)
		first, second := &attempt{assignment: protocol.TrainAssignment{Attempt: 1}, done: make(chan struct{})},
			&attempt{assignment: protocol.TrainAssignment{Attempt: 2}, done: make(chan struct{})}
		next.begin(first, second)
		time.Sleep(releaseTimeout - time.Second) // in synctest, time passes at once
		close(first.done)
		synctest.Wait()
		require.Empty(t, next.logText())
		time.Sleep(time.Second)
		synctest.Wait()
		require.Contains(t, next.logText(),
			"the attempt failed: the node did not start the attempt: attempt 2 of the same job did not end within 5m0s")
		require.Zero(t, trainer.runs)
		require.True(t, next.failure(next.awaitEarlier([]*attempt{second})).Preempted)
	})
}

// TestAttemptStartsAfterEarlierWork checks that an attempt starts when the earlier attempt of its
// job has ended and its devices are released, each within releaseTimeout.
func TestAttemptStartsAfterEarlierWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, trainer := newTestAttempt(t, 2)
		_, release, err := next.agent.devices.acquire(t.Context(), map[string]int{l4: 8})
		require.NoError(t, err)
		earlier := &attempt{done: make(chan struct{})}
		next.begin(earlier)
		time.Sleep(releaseTimeout - time.Second) // in synctest, time passes at once
		close(earlier.done)
		time.Sleep(releaseTimeout - time.Second)
		require.Zero(t, trainer.runs)
		release()
		synctest.Wait()
		require.Equal(t, 1, trainer.runs)
		require.Contains(t, next.logText(), "the training has begun")
	})
}

// TestStoppedAttemptDoesNotWait checks that an attempt that is stopped while it waits for earlier
// work ends at once, and that this is no timeout.
func TestStoppedAttemptDoesNotWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, _ := newTestAttempt(t, 2)
		_, _, err := next.agent.devices.acquire(t.Context(), map[string]int{l4: 8})
		require.NoError(t, err)
		next.begin()
		next.stop(errCancelled)
		synctest.Wait()
		require.Contains(t, next.logText(), "the attempt was interrupted: "+errCancelled.Error())
		_, _, err = next.acquireDevices()
		require.False(t, strings.Contains(err.Error(), "did not start"), err)
	})
}

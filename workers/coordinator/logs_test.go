package coordinator_test

import (
	"bytes"
	"context"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/workers/protocol"
)

// jobLog returns the job's log.
func (c *cluster) jobLog() string {
	key, err := c.blobs.NewestOfAttempts(c.Context(), blobs.LogRoot(jobName, c.world.Lookup(jobName).CreateEvent),
		100)
	require.NoError(c, err)
	if key == "" {
		return ""
	}
	file, err := c.blobs.Get(c.Context(), key)
	require.NoError(c, err)
	defer file.Close()
	content := testutil.ReadAll(c, file)
	return string(content)
}

// TestLogOfAStaleAttempt checks that an attempt that is over cannot change the log of the next
// attempt, although its URL is still valid. It also checks that the next attempt reads the log of
// the earlier one, and that all logs are deleted with the job.
func TestLogOfAStaleAttempt(t *testing.T) {
	c := startWithInputs(t)
	old, other := c.registerNode("n1", "a"), c.registerNode("n2", "b")
	put := func(url, content string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, strings.NewReader(content))
		require.NoError(t, err)
		response, err := http.DefaultClient.Do(request)
		require.NoError(t, err)
		require.NoError(t, response.Body.Close())
		require.Equal(t, http.StatusOK, response.StatusCode)
	}
	sign := protocol.SignRequest{Version: protocol.Version, Job: jobName, For: protocol.ForLog}
	c.startJob("n1")
	var first, second protocol.Assignments
	require.NoError(t, c.send(old, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2), &first))
	require.Len(t, first.Train, 1)
	require.Empty(t, first.Train[0].EarlierLogURL)
	put(first.Train[0].LogURL, "one\n")
	require.Equal(t, "one\n", c.jobLog())

	c.do(domain.IntendJob(jobName, domain.RequeueJob{Attempt: 1, Reason: "lost"}))
	c.do(domain.IntendJob(jobName, domain.QueueJob{}))
	c.place("n2")
	require.NoError(t, c.send(other, protocol.HeartbeatSubject("n2"), heartbeatOf("b", 2), &second))
	require.Len(t, second.Train, 1)
	response, err := http.Get(second.Train[0].EarlierLogURL) //nolint:noctx // a test
	require.NoError(t, err)
	earlier := testutil.ReadAll(t, response.Body)
	require.NoError(t, response.Body.Close())
	require.Equal(t, "one\n", string(earlier))
	put(second.Train[0].LogURL, "one\ntwo\n")
	put(first.Train[0].LogURL, "stale\n")
	require.Equal(t, "one\ntwo\n", c.jobLog())

	var reply protocol.SignReply
	sign.CreateTime, sign.Attempt = c.created(), 2
	require.NoError(t, c.send(other, protocol.SignSubject("n2"), sign, &reply))
	put(reply.URLs[protocol.LogFile], "renewed\n")
	require.Equal(t, "renewed\n", c.jobLog())
	sign.Attempt = 1
	require.NoError(t, c.send(old, protocol.SignSubject("n1"), sign, &reply))
	require.Equal(t, protocol.Stale, reply.Outcome)

	event := c.world.Lookup(jobName).CreateEvent
	directory := blobs.JobRoot + "acme/" + event + "/"
	require.Equal(t, []string{"trainer-2.log"}, slices.Collect(maps.Keys(c.files(directory).Sizes)),
		"only the newest is kept")
	c.do(domain.IntendJob(jobName, domain.DeleteJob{}))
	c.do(domain.Intend(domain.Nodes, nodeName("n2"), domain.ReleaseAllocation{ID: domain.AllocationID(jobName, 2)}))
	c.do(domain.IntendJob(jobName, domain.CleanJob{}))
	c.until("the job is gone", func(v *projections.View) bool {
		return projections.TableOf(v, domain.SupervisedJobs).Len() == 0
	})
	put(first.Train[0].LogURL, "stale\n")
	require.Empty(t, c.files(directory).Sizes)
}

// heldLogs is a transport that holds each PUT of a log until release is closed, and sends other
// requests at once.
type heldLogs struct{ release, held, sent chan struct{} }

func (h heldLogs) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPut || !strings.HasSuffix(r.URL.Path, ".log") {
		return http.DefaultTransport.RoundTrip(r)
	}
	h.held <- struct{}{}
	select {
	case <-h.release:
	case <-r.Context().Done():
		return nil, r.Context().Err()
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	r.Body = io.NopCloser(bytes.NewReader(body))
	response, err := http.DefaultTransport.RoundTrip(r)
	h.sent <- struct{}{}
	return response, err
}

// TestResultsDoNotWaitForTheLog checks that jobs end, with and without a failure of the training,
// while their logs cannot be stored, and that the logs are stored afterwards.
func TestResultsDoNotWaitForTheLog(t *testing.T) {
	for state, broken := range map[string]bool{domain.JobCompletedState: false, domain.JobFailedState: true} {
		t.Run(state, func(t *testing.T) {
			c := startWithInputs(t)
			logs := heldLogs{make(chan struct{}), make(chan struct{}, 9), make(chan struct{}, 9)}
			c.http = &http.Client{Transport: logs}
			first := 0
			engine := recordFirst(&first)
			engine.Trainer = talkative{engine.Trainer}
			if broken {
				engine.Trainer = brokenTrainer{}
			}
			c.agent("n1", engine)
			c.startJob("n1")
			c.wait("the upload of the log begins", logs.held)
			c.reaches(state)
			require.Empty(t, c.jobLog())
			close(logs.release)
			c.wait("the log is stored", logs.sent)
			if broken {
				require.Contains(t, c.jobLog(), "the attempt failed: it is broken")
			} else {
				require.Contains(t, c.jobLog(), "the training is complete")
			}
		})
	}
}

// A talkative trainer writes a log that is too large for a report.
type talkative struct{ engines.Trainer }

func (t talkative) Train(ctx context.Context, r engines.TrainRequest, watch engines.TrainWatcher,
) (engines.TrainResult, error) {
	for range 2 * protocol.MaxInline / len("a line\n") {
		_, _ = r.Log.Write([]byte("a line\n"))
	}
	return t.Trainer.Train(ctx, r, watch)
}

// brokenTrainer is a trainer that fails.
type brokenTrainer struct{}

func (brokenTrainer) Train(context.Context, engines.TrainRequest, engines.TrainWatcher) (engines.TrainResult, error) {
	return engines.TrainResult{}, domain.Errorf(domain.InvalidArgument, "it is broken")
}

package coordinator_test

import (
	"context"
	"crypto/sha256"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/workers/coordinator"
)

// panickingPools opens pools whose runs panic in each pass with panicData data.
type panickingPools struct{ engines.TrainPoolOpener }

const panicData = 7

func (p panickingPools) OpenTrainPool(ctx context.Context, r engines.TrainPoolRequest) (engines.TrainPool, error) {
	pool, err := p.TrainPoolOpener.OpenTrainPool(ctx, r)
	return panickingPool{pool}, err
}

type panickingPool struct{ engines.TrainPool }

func (p panickingPool) CreateRun(ctx context.Context, c engines.TrainRunConfig) (engines.TrainRun, error) {
	run, err := p.TrainPool.CreateRun(ctx, c)
	return panickingRun{run}, err
}

func (p panickingPool) RestoreRun(ctx context.Context, state io.Reader, o engines.TrainRestoreOptions) (
	engines.TrainRun, error,
) {
	run, err := p.TrainPool.RestoreRun(ctx, state, o)
	return panickingRun{run}, err
}

type panickingRun struct{ engines.TrainRun }

func (r panickingRun) ForwardBackward(ctx context.Context, pass engines.TrainPass) (engines.TrainPassResult, error) {
	if len(pass.Data) == panicData {
		panic("a test")
	}
	return r.TrainRun.ForwardBackward(ctx, pass)
}

// TestEnginePanics checks that a run continues without an operation in which the engine panics,
// also after a restart of the agent, and that another run of the attempt is not affected.
func TestEnginePanics(t *testing.T) {
	s := startService(t)
	engine := embeddedEngine()
	engine.TrainPools = panickingPools{engine.TrainPools}
	stop := s.agent("n1", engine)
	s.place("n1")
	s.create("run", 1)
	s.create("other", 2)
	l := newLoop(10, 6)
	results, state := s.direct(l)
	bad := engines.TrainPass{}
	for range panicData {
		bad.Data = append(bad.Data, l[0].ForwardBackward.Data[0])
	}
	const at = 4
	var expected [][]byte
	for i, o := range l {
		if i == at {
			s.submit("run", engines.TrainOperation{ForwardBackward: &bad})
			expected = append(expected, nil)
		}
		s.submit("run", o)
		s.submit("other", o)
		expected = append(expected, results[i])
	}
	check := func() {
		for i, body := range expected {
			result := s.await(s.lane("run"), int64(i+1))
			if body == nil {
				require.Equal(t, engines.EnginePanicked, result.Err.Reason)
				continue
			}
			require.Nil(t, result.Err)
			require.Equal(t, body, result.Body, "operation %d", i+1)
		}
	}
	check()
	s.requireResults("other", results)
	require.Equal(t, state, s.saveState("run", "one"))
	stop()
	s.agent("n2", engine)
	s.replace("n2")
	check()
	require.Equal(t, state, s.saveState("run", "two"))
}

// TestEngineWithoutPools checks that a job whose training service is placed on a node without
// training pools says so.
func TestEngineWithoutPools(t *testing.T) {
	s := startService(t)
	s.agent("n1", simulated.New(simulated.Options{}))
	for range domain.MaxFailures {
		s.untilJob("the attempt has ended", func(j domain.TrainerJob) bool {
			return j.State == domain.JobReQueueingState || j.State == domain.JobPendingState
		})
		if s.job().State.State == domain.JobReQueueingState {
			s.do(domain.IntendJob(serviceName, domain.QueueJob{}))
		}
		s.place("n1")
		attempt := s.job().State.Attempt
		s.untilJob("the attempt has ended", func(j domain.TrainerJob) bool { return !j.Active() && j.Attempt == attempt })
	}
	require.Equal(t, domain.JobFailedState, s.job().State.State)
	require.Contains(t, s.job().State.Status.Message, "cannot serve training runs")
}

// TestTwoControlPlanes checks that an operation that another control plane has stored is executed
// at once, and that its result wakes the client there.
func TestTwoControlPlanes(t *testing.T) {
	s := startService(t)
	other := operations.New(s.blobs, nil)
	for id, journal := range map[string]*operations.Store{"a": s.journal, "b": other} {
		news := &coordinator.TrainingNews{Conn: s.server.Coordinator(), ID: id, Journal: journal, Live: s.world.Live(),
			Logger: testLog}
		journal.SetAnnounce(news.Announce)
		s.background(news.Run)
	}
	require.NoError(t, s.server.Coordinator().Flush())
	s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	s.await(s.lane("run"), 0)
	l := newLoop(11, 3)
	results, _ := s.direct(l)
	began := time.Now()
	for i, o := range l {
		body, err := o.Encode()
		require.NoError(t, err)
		_, err = other.Submit(t.Context(), s.lane("run"), operations.Operation{Seq: int64(i + 1), Kind: o.Kind(), Body: body,
			Hash: sha256.Sum256(body)})
		require.NoError(t, err)
		result, err := other.Wait(t.Context(), s.lane("run"), int64(i+1))
		require.NoError(t, err)
		require.Equal(t, results[i], result.Body)
	}
	t.Logf("%s for each operation", time.Since(began)/time.Duration(len(l)))
}

// TestTurnaround measures how long a client waits for the acknowledgement and for the result of an
// operation.
func TestTurnaround(t *testing.T) {
	s := startService(t)
	s.agent("n1", embeddedEngine())
	s.place("n1")
	s.create("run", 1)
	s.await(s.lane("run"), 0)
	pass := engines.TrainPass{Data: []engines.TrainDatum{{Tokens: []int32{1, 2, 3, 4}, Targets: []int32{2, 3, 4, 5}}}}
	body, err := engines.TrainOperation{Forward: &pass}.Encode()
	require.NoError(t, err)
	var submits, turnarounds []time.Duration
	for n := int64(1); n <= 200; n++ {
		began := time.Now()
		_, err := s.journal.Submit(t.Context(), s.lane("run"), operations.Operation{Seq: n,
			Kind: engines.TrainForward, Body: body, Hash: sha256.Sum256(body)})
		require.NoError(t, err)
		submits = append(submits, time.Since(began))
		_, err = s.journal.Wait(t.Context(), s.lane("run"), n)
		require.NoError(t, err)
		turnarounds = append(turnarounds, time.Since(began))
	}
	slices.Sort(submits)
	slices.Sort(turnarounds)
	t.Logf("submit: p50 %s, p99 %s; result: p50 %s, p99 %s", submits[100], submits[198], turnarounds[100],
		turnarounds[198])
	require.Less(t, turnarounds[100], time.Second, "nothing is polled")
}

package train

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/internal/testutil"
)

// A simulation is a training of 12 chunks on devices for each phase, on the clock of synctest.
type simulation struct {
	staleness int
	seed      uint64
	// duration of the n-th generation and of the n-th step
	generate, train func(n int) time.Duration
	score           time.Duration // duration of scoring a chunk, whose responses are scored concurrently
}

// run trains on devices and returns the reward of the last third of the chunks.
func (s simulation) run(t *testing.T, base string, devices [phaseCount]*Devices) (reward, highest float64) {
	request := rolloutRequest(t, base, promptRows(24), func(row map[string]any) (engines.Score, error) {
		time.Sleep(s.score)
		return letters(t)(row)
	})
	request.Settings.Rollouts, request.Settings.LearningRate, request.Seed = responsesAhead(s.staleness), 0.02, s.seed
	request.Settings.Rollouts.MaxConcurrentEvaluations = 64
	request.Settings.BatchSizeSamples, request.Parallelism = 8, 1
	watch := &recorder{t: t}
	j, err := newJob(t.Context(), request, watch)
	require.NoError(t, err)
	defer j.metrics.Close()
	steps, generations := 0, 0
	j.phases = &phases{devices: devices, cores: 1, entered: func(p phase) {
		if p == phaseTrain {
			time.Sleep(s.train(steps))
			steps++
		}
	}}
	r := j.procedure.(*rollouts)
	r.startReplicas = func(net *llama.Net, n int) ([]engines.Model, error) {
		models, err := r.startModels(net, n)
		models[0] = &slowModel{models[0], s.generate(generations)}
		generations++
		return models, err
	}
	require.NoError(t, j.run(t.Context()))
	require.Equal(t, 12, generations)
	n := 0.0
	for _, row := range watch.rows {
		highest = max(highest, row.Values["train/staleness"])
		if mean, ok := row.Values["reward/mean"]; ok && row.Step > 8 {
			reward, n = reward+mean, n+1
		}
	}
	return reward / n, highest
}

// A slowModel takes a duration for each completion. All completions of a chunk are concurrent.
type slowModel struct {
	engines.Model
	duration time.Duration
}

func (m *slowModel) Complete(
	ctx context.Context, request engines.CompletionRequest, emit func(engines.Chunk) error,
) (engines.Usage, error) {
	time.Sleep(m.duration)
	return m.Model.Complete(ctx, request, emit)
}

// TestTwoTrainingsInterleave simulates trainings on one device that generates and one device that
// trains. Two trainings at the same time must take at most 0.6 of the time of one after the other,
// as they are by default, and compute the same as alone.
func TestTwoTrainingsInterleave(t *testing.T) {
	base := smallBase(t, 1)
	constant := func(d time.Duration) func(int) time.Duration { return func(int) time.Duration { return d } }
	varying := func(d time.Duration) func(int) time.Duration { // from d/2 to 3d/2, d on average
		return func(n int) time.Duration { return d/2 + d*time.Duration(n*7%5)/4 }
	}
	for _, tc := range []struct {
		name            string
		generate, train func(int) time.Duration
	}{
		{"equal phases", constant(10 * time.Second), constant(10 * time.Second)},
		{"long generations", constant(11 * time.Second), constant(9 * time.Second)},
		{"varying phases", varying(10 * time.Second), varying(10 * time.Second)},
	} {
		var synchronous time.Duration // of two trainings, one after the other
		for staleness := range 3 {
			train := func(t *testing.T, seed int, devices [phaseCount]*Devices) float64 {
				reward, highest := simulation{staleness, uint64(seed), tc.generate, tc.train, 0}.run(t, base, devices)
				require.LessOrEqual(t, highest, float64(staleness))
				return reward
			}
			var alone, together [2]float64
			var took [2]time.Duration
			for seed := range alone {
				synctest.Test(t, func(t *testing.T) {
					start := time.Now()
					alone[seed] = train(t, seed, oneOfEach())
					took[seed] = time.Since(start)
				})
			}
			if staleness == 0 {
				synchronous = took[0] + took[1]
			} else { // a training that generates ahead overlaps its own phases
				require.LessOrEqual(t, float64(took[0]+took[1])/float64(synchronous), 0.7)
			}
			synctest.Test(t, func(t *testing.T) {
				start, shared := time.Now(), oneOfEach()
				var trainings sync.WaitGroup
				for seed := range together {
					trainings.Go(func() { together[seed] = train(t, seed, shared) })
				}
				trainings.Wait()
				both := time.Since(start)
				part := float64(both) / float64(synchronous)
				t.Logf("%s, staleness %d: together %v, %.3f of %v; one after the other %v", tc.name, staleness, both, part,
					synchronous, took[0]+took[1])
				require.LessOrEqual(t, part, 0.6)
				require.Equal(t, alone, together, "trainings do not depend on each other")
			})
		}
	}
}

// TestScoringLeavesTheCore simulates a training on one core for both phases, whose evaluator is
// slow: up to maxStaleness chunks are scored at the same time.
func TestScoringLeavesTheCore(t *testing.T) {
	base := smallBase(t, 1)
	second := func(int) time.Duration { return time.Second }
	for staleness, limit := range []time.Duration{12 * 22, 12 * 22, 12 * 11.5, 12 * 8, 12 * 6} {
		synctest.Test(t, func(t *testing.T) {
			core, start := devicesOf(1), time.Now()
			simulation{staleness, 1, second, second, 20 * time.Second}.run(t, base, [phaseCount]*Devices{core, core, core})
			t.Logf("staleness %d: %v", staleness, time.Since(start))
			require.LessOrEqual(t, time.Since(start), limit*time.Second, "staleness %d", staleness)
			require.Equal(t, 1, core.free)
		})
	}
}

// oneOfEach returns a device that generates and a device that trains.
func oneOfEach() [phaseCount]*Devices {
	trains := devicesOf(1)
	return [phaseCount]*Devices{phaseGenerate: devicesOf(1), phaseLogProbs: trains, phaseTrain: trains}
}

func devicesOf(n int) *Devices {
	d := &Devices{}
	d.Add(n)
	return d
}

// TestStaleTrainingsLearn compares the reward of trainings with and without staleness, over several
// seeds: ANNEAL_REWARD_SEEDS is their number. The random model reaches a mean of about 0.97.
func TestStaleTrainingsLearn(t *testing.T) {
	seeds := testutil.Variable(t, "ANNEAL_REWARD_SEEDS", 3)
	base := smallBase(t, 1)
	rewards := map[int][]float64{}
	for _, staleness := range []int{0, 1} {
		for seed := range seeds {
			request := rolloutRequest(t, base, promptRows(48), letters(t))
			request.Settings.Rollouts, request.Settings.LearningRate = responsesAhead(staleness), 0.01
			request.Settings.Epochs, request.Settings.LoraRank, request.Seed = 12, 0, uint64(seed)
			watch := &recorder{t: t}
			mustTrain(t, request, watch)
			rewards[staleness] = append(rewards[staleness], lateReward(watch.rows)-watch.rows[0].Values["reward/mean"])
		}
	}
	without, spreadWithout := spread(rewards[0])
	with, spreadWith := spread(rewards[1])
	t.Logf("rise of the reward: %.3f ± %.3f without, %.3f ± %.3f with staleness", without, spreadWithout, with, spreadWith)
	require.Greater(t, without, 0.5, fmt.Sprint(rewards))
	require.InDelta(t, without, with, 0.05, fmt.Sprint(rewards))
}

// lateReward returns the mean reward of the last quarter of the chunks.
func lateReward(rows []engines.Metrics) float64 {
	var all []float64
	for _, row := range rows {
		if mean, ok := row.Values["reward/mean"]; ok {
			all = append(all, mean)
		}
	}
	mean, _ := spread(all[len(all)*3/4:])
	return mean
}

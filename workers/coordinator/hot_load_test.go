package coordinator_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
)

func (c *cluster) deployHot(nodes ...string) (all []domain.Replica) {
	c.Helper()
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{
			BaseModel: string(modelName), MinReplicaCount: len(nodes), EnableHotLoad: true}}))
	for _, node := range nodes {
		all = append(all, c.serving(c.placeReplica(node).ID))
	}
	return all
}

// weights stores the weights of a step of a trainer job.
func (c *cluster) weights(step int, adapter bool) domain.HotWeights {
	c.Helper()
	w := domain.HotWeights{Job: domain.NewName("acme", domain.TrainerJobs.Collection, "j"), TrainStep: 1, Step: step,
		Adapter: adapter, Made: time.Now().UTC(),
		Files: domain.Files{Prefix: fmt.Sprintf("jobs/acme/j/%d/model/", step), Sizes: map[string]int64{}}}
	for file, text := range map[string]string{"config.json": "{}",
		"simulated.json": fmt.Sprintf("state of step %d", step)} {
		n := c.put(w.Files.Prefix+file, []byte(text))
		w.Files.Sizes[file] = n
	}
	return w
}

func (c *cluster) offer(w domain.HotWeights) {
	c.Helper()
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.OfferWeights{HotWeights: w}))
}

// hot waits until the deployment's hot-load state meets a condition.
func (c *cluster) hot(what string, so func(domain.HotLoad) bool) domain.HotLoad {
	c.Helper()
	var hot domain.HotLoad
	c.untilDeployment(what, func(d domain.Deployment) bool {
		hot = d.Hot
		return so(hot)
	})
	return hot
}

func serves(w domain.HotWeights) func(domain.HotLoad) bool {
	return func(h domain.HotLoad) bool { return h.Served != nil && h.Served.ID() == w.ID() }
}

// served returns the ID of the hot-loaded weights that the deployment serves; "" if it serves its
// model.
func (c *cluster) served() string {
	row, _ := c.world.View().Deployments.Get(deploymentName)
	if row.State.Hot.Served == nil {
		return ""
	}
	return row.State.Hot.Served.ID()
}

// TestWeightsAreSwappedUnderTraffic checks that weights are swapped while two replicas serve
// requests: no response is dropped, each response is of one set of weights, and no client receives
// older weights after newer ones.
func TestWeightsAreSwappedUnderTraffic(t *testing.T) {
	t.Parallel()
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{Seed: 7, Slots: 8,
		TokenTime: func(int) time.Duration { return time.Millisecond }})
	c.agent("n1", engine)
	c.agent("n2", engine)
	c.agent("n3", engine)
	replicas := c.deployHot("n1", "n2")

	over := make(chan struct{})
	var asked atomic.Int32
	var all sync.WaitGroup
	var responses sync.Map // by ID of the weights: response of the engine with them
	for _, r := range replicas {
		for range 2 {
			all.Go(func() {
				for ended := false; !ended; asked.Add(1) {
					id := c.served()
					text, err := c.complete(r, id)
					var failure *domain.Error
					if errors.As(err, &failure) && failure.Reason == engines.AddonNotLoaded && c.served() != id {
						continue // the gateway would send the request again too
					}
					if was, known := responses.LoadOrStore(id, text); err != nil || known && was != text {
						t.Errorf("a response was dropped or of other weights: %q, %v", text, err)
						return
					}
					select {
					case <-over:
						ended = true
					default:
					}
				}
			})
		}
	}
	var last domain.HotWeights
	for step, adapter := range []bool{true, true, false, true} {
		before := c.served()
		begun, answer := make(chan struct{}), make(chan error, 1)
		begin := sync.OnceFunc(func() { close(begun) })
		go func() {
			_, err := c.replicas().Complete(c.Context(), deploymentName, replicas[0],
				engines.CompletionRequest{Prompt: "go", MaxTokens: 300, IgnoreEOS: true, Addon: before},
				func(engines.Chunk) error { begin(); return nil })
			answer <- err
		}()
		c.wait("the response starts", begun)
		last = c.weights(step+1, adapter)
		c.offer(last)
		c.hot(fmt.Sprintf("step %d is served", step+1), serves(last))
		require.NoError(t, <-answer, "requests in progress finish")
	}
	close(over)
	all.Wait()
	require.Greater(t, int(asked.Load()), 8)
	texts := map[any]bool{}
	responses.Range(func(_, text any) bool { texts[text] = true; return true })
	require.Greater(t, len(texts), 2, "the weights of each step have different responses")

	// A replica that is placed later is ready when it has loaded the newest weights.
	late := c.serving(c.placeReplica("n3").ID)
	want, err := c.complete(replicas[0], last.ID())
	require.NoError(t, err)
	got, err := c.complete(late, last.ID())
	require.NoError(t, err)
	require.Equal(t, want, got)
}

// adaptersOnly is an engine that cannot hot-load full weights.
func adaptersOnly(o simulated.Options) engines.Engine {
	e := simulated.New(o)
	e.Completer = narrow{e.Completer}
	return e
}

type narrow struct{ engines.Completer }

func (n narrow) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	m, err := n.Completer.Load(ctx, files)
	if err != nil {
		return nil, err
	}
	return struct{ engines.AddonLoader }{m.(engines.AddonLoader)}, nil
}

// TestWeightsThatDoNotFit checks that weights that do not fit are refused, and that the deployment
// continues to serve the previous weights.
func TestWeightsThatDoNotFit(t *testing.T) {
	t.Parallel()
	c := startWithInputs(t)
	var unfit atomic.Bool
	c.agent("n1", adaptersOnly(simulated.Options{Seed: 7, Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadAddon && unfit.Load() {
			return domain.Errorf(domain.FailedPrecondition, "the adapter was trained on another base")
		}
		return nil
	}}))
	r := c.deployHot("n1")[0]
	one := c.weights(1, true)
	c.offer(one)
	c.hot("step 1 is served", serves(one))
	want, err := c.complete(r, one.ID())
	require.NoError(t, err)

	whole := c.weights(2, false)
	c.offer(whole)
	hot := c.hot("all parameters are refused", func(h domain.HotLoad) bool {
		return h.Refused != nil &&
			h.Refused.ID() == whole.ID()
	})
	require.Contains(t, hot.Status.Message, "train an adapter")
	unfit.Store(true)
	other := c.weights(3, true)
	c.offer(other)
	hot = c.hot("the adapter is refused", func(h domain.HotLoad) bool {
		return h.Refused != nil &&
			h.Refused.ID() == other.ID()
	})
	require.Contains(t, hot.Status.Message, "another base")
	require.Nil(t, hot.Offered)
	require.True(t, serves(one)(hot))
	got, err := c.complete(r, one.ID())
	require.NoError(t, err)
	require.Equal(t, want, got)

	unfit.Store(false)
	next := c.weights(4, true)
	c.offer(next)
	require.Nil(t, c.hot("weights that fit are served again", serves(next)).Refused)
}

// TestAgentIsKilledDuringASwap checks that a swap completes when an agent is killed during it, and
// that the replica that replaces the lost one loads the weights that are served.
func TestAgentIsKilledDuringASwap(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a process")
	}
	t.Parallel()
	c := startWithInputs(t)
	stuck := make(chan struct{})
	var once sync.Once
	c.agent("n1", simulated.New(simulated.Options{Seed: 7, Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadAddon {
			once.Do(func() { <-stuck }) // the swap is in progress when the agent is killed
		}
		return nil
	}}))
	kill := c.child("n2", c.TempDir(), 0)
	replicas := c.deployHot("n1", "n2")
	one := c.weights(1, true)
	c.offer(one)
	c.hot("step 1 is being loaded", func(h domain.HotLoad) bool { return h.Offered != nil })
	kill()
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.RemoveReplica{ID: replicas[1].ID,
		Reason: "its node is lost"}))
	close(stuck)
	c.hot("step 1 is served", serves(one))
	want, err := c.complete(replicas[0], one.ID())
	require.NoError(t, err)

	two := c.weights(2, true)
	c.offer(two)
	c.hot("step 2 is served", serves(two))
	c.agent("n3", simulated.New(simulated.Options{Seed: 7}))
	late := c.serving(c.placeReplica("n3").ID)
	got, err := c.complete(late, two.ID())
	require.NoError(t, err)
	require.NotEqual(t, want, got)
}

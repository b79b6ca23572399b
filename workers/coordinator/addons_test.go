package coordinator_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/projections"
	"anneal/workers/agent"
	"anneal/workers/coordinator"
	"anneal/workers/protocol"
)

// addonModel stores an adapter whose completions differ from those of other adapters.
func (c *cluster) addonModel(id string) domain.Name {
	c.Helper()
	name := domain.NewName("acme", "models", id)
	files := domain.Files{Prefix: "models/acme/" + id + "/", Sizes: map[string]int64{}}
	for file, text := range map[string]string{"adapter_config.json": "{}", "simulated.json": "state of " + id} {
		n := c.put(files.Prefix+file, []byte(text))
		files.Sizes[file] = n
	}
	c.do(domain.Intend(domain.Models, name, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(modelName)}, Files: files}))
	return name
}

func addonName(id string) domain.Name { return domain.NewName("acme", "deployedModels", id) }

// load creates a deployed model of a stored adapter.
func (c *cluster) load(id string) {
	c.Helper()
	model := domain.NewName("acme", "models", id)
	if _, ok := c.world.View().Models.Get(model); !ok {
		c.addonModel(id)
	}
	c.do(domain.Intend(domain.DeployedModels, addonName(id), domain.CreateDeployedModel{
		DeployedModelSpec: domain.DeployedModelSpec{Model: string(model), Deployment: string(deploymentName)}}))
}

func (c *cluster) unload(id string) {
	c.Helper()
	c.do(domain.Intend(domain.DeployedModels, addonName(id), domain.UndeployModel{Reason: "by its user"}))
}

// addon waits until the deployed model with the given ID is in a state, and returns the ID of its
// addon. The state "" means deleted.
func (c *cluster) addon(id, state string) (addonID string, m domain.DeployedModel) {
	c.Helper()
	c.until("the addon "+id+" is "+state, func(v *projections.View) bool {
		row, ok := v.DeployedModels.Get(addonName(id))
		if ok {
			addonID, m = domain.AddonID(row.Name, row.CreateTime), row.State
			return m.State == state
		}
		return state == ""
	})
	return addonID, m
}

// complete returns the completion of a replica with an addon.
func (c *cluster) complete(r domain.Replica, addon string) (string, error) {
	text := ""
	_, err := c.replicas().Complete(c.Context(), deploymentName, r,
		engines.CompletionRequest{Prompt: "go", MaxTokens: 30, IgnoreEOS: true, Addon: addon},
		func(chunk engines.Chunk) error { text += chunk.Text; return nil })
	return text, err
}

func (c *cluster) deployForAddons(node string) domain.Replica {
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{
		DeploymentSpec: domain.DeploymentSpec{
			BaseModel: string(modelName), MinReplicaCount: 1, EnableAddons: true}}))
	return c.placeReplica(node)
}

func TestAddonsAreLoadedAndUnloaded(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{Seed: 7})
	c.agent("n1", engine)
	c.agent("n2", engine)
	r1 := c.serving(c.deployForAddons("n1").ID)
	c.load("polite")
	c.load("terse")
	polite, _ := c.addon("polite", domain.ModelDeployedState)
	terse, _ := c.addon("terse", domain.ModelDeployedState)
	answers := map[string]string{}
	for _, id := range []string{"", polite, terse} {
		text, err := c.complete(r1, id)
		require.NoError(t, err)
		answers[text] = id
	}
	require.Len(t, answers, 3, "each has its own completion")

	// A replica that is placed later is ready when it has loaded the addons.
	r2 := c.serving(c.placeReplica("n2").ID)
	for want, id := range answers {
		got, err := c.complete(r2, id)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}

	c.unload("polite")
	c.addon("polite", "")
	_, err := c.complete(r1, polite)
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.Equal(t, engines.ErrAddonNotLoaded(polite).Error(), err.Error())
	_, err = c.complete(r2, terse)
	require.NoError(t, err)

	// A deployed model that is created again with the same name has another addon ID.
	c.load("polite")
	again, _ := c.addon("polite", domain.ModelDeployedState)
	require.NotEqual(t, polite, again)
	for _, r := range []domain.Replica{r1, r2} {
		got, err := c.complete(r, again)
		require.NoError(t, err)
		require.Equal(t, polite, answers[got])
	}
}

// TestAddonsUnderTraffic checks that requests continue while addons are loaded and unloaded: no
// request is dropped, and each request is served by the addon that it names.
func TestAddonsUnderTraffic(t *testing.T) {
	t.Parallel()
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{Seed: 7, Slots: 4,
		TokenTime: func(int) time.Duration { return time.Millisecond }}))
	r := c.serving(c.deployForAddons("n1").ID)
	c.load("steady")
	steady, _ := c.addon("steady", domain.ModelDeployedState)
	want, err := c.complete(r, steady)
	require.NoError(t, err)
	base, err := c.complete(r, "")
	require.NoError(t, err)

	over := make(chan struct{})
	var asked atomic.Int32
	var all sync.WaitGroup
	for id, text := range map[string]string{steady: want, "": base} {
		for range 2 {
			all.Go(func() {
				for ended := false; !ended; asked.Add(1) {
					got, err := c.complete(r, id)
					if err != nil || got != text {
						t.Errorf("a response was dropped or of another addon: %q, %v", got, err)
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
	for range 3 {
		c.load("passing")
		passing, _ := c.addon("passing", domain.ModelDeployedState)
		begun := make(chan struct{})
		var once sync.Once
		answer := make(chan error, 1)
		go func() {
			_, err := c.replicas().Complete(c.Context(), deploymentName, r,
				engines.CompletionRequest{Prompt: "go", MaxTokens: 200, IgnoreEOS: true, Addon: passing},
				func(engines.Chunk) error { once.Do(func() { close(begun) }); return nil })
			answer <- err
		}()
		c.wait("the response starts", begun)
		c.unload("passing")
		c.addon("passing", "")
		require.NoError(t, <-answer, "requests in progress finish")
	}
	close(over)
	all.Wait()
	require.Greater(t, int(asked.Load()), 8)
}

// TestAddonFails checks that an addon that no replica can load fails with the reason, and does not
// prevent a replica from being ready.
func TestAddonFails(t *testing.T) {
	t.Parallel()
	c := startWithInputs(t)
	unfit := domain.Errorf(domain.FailedPrecondition, "the adapter was trained on another base")
	c.agent("n1", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadAddon {
			return unfit
		}
		return nil
	}}))
	r := c.deployForAddons("n1")
	c.load("polite")
	_, failed := c.addon("polite", domain.ModelFailedState)
	require.Contains(t, failed.Status.Message, unfit.Message)
	c.serving(r.ID)
	c.unload("polite")
	c.addon("polite", "")

	c.addonModel("lost")
	row, _ := c.world.View().Models.Get(domain.NewName("acme", "models", "lost"))
	require.NoError(t, c.blobs.DeletePrefix(t.Context(), row.State.Files.Prefix))
	c.load("lost")
	_, failed = c.addon("lost", domain.ModelFailedState)
	require.Contains(t, failed.Status.Message, "404")
}

// TestReplicaThatLacksAnAddonIsReplaced checks that a replica that cannot load an addon is
// replaced, and that the addon stays deployed, if other replicas serve the addon.
func TestReplicaThatLacksAnAddonIsReplaced(t *testing.T) {
	c := startWithInputs(t)
	c.agent("n1", simulated.New(simulated.Options{}))
	c.agent("n2", simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
		if a.Name == simulated.LoadAddon {
			return domain.Errorf(domain.FailedPrecondition, "this machine is too old")
		}
		return nil
	}}))
	c.serving(c.deployForAddons("n1").ID)
	c.load("polite")
	c.addon("polite", domain.ModelDeployedState)
	r2 := c.placeReplica("n2")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		_, there := d.Replicas[r2.ID]
		return !there
	})
	require.Contains(t, d.Status.Message, "too old")
	c.addon("polite", domain.ModelDeployedState)
}

// hangingCompleter is a completer whose LoadAddon returns only when release is closed.
type hangingCompleter struct{ release chan struct{} }

func (s hangingCompleter) Load(context.Context, engines.ModelFiles) (engines.Model, error) {
	<-s.release
	return nil, errors.New("released")
}

func TestReplicaLoadTimesOut(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{})
	hung := hangingCompleter{make(chan struct{})}
	defer close(hung.release)
	engine.Completer = hung
	a, err := agent.New(agent.Options{Node: "n1", Token: "token of n1", Key: keyOf(t, "n1"), URL: c.server.URL(),
		Dir: t.TempDir(), Engine: engine, Log: testLog, LoadWithin: 50 * time.Millisecond})
	require.NoError(t, err)
	c.background(a.Run)
	c.ready("n1")
	r := c.deploy("n1")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		_, there := d.Replicas[r.ID]
		return !there
	})
	require.Equal(t, 1, d.Failures)
	require.Contains(t, d.Status.Message, "did not load the model within 50ms")
}

// TestAttemptThatDoesNotStartIsRequeued checks that an attempt that its node does not start within
// BeginWithin is requeued.
func TestAttemptThatDoesNotStartIsRequeued(t *testing.T) {
	c := startWithInputs(t)
	node := c.registerNode("n1", "a")
	c.startJob("n1")
	var assignments protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 2), &assignments))
	require.Len(t, assignments.Train, 1)
	c.stop()
	late := coordinator.New(coordinator.Options{Log: c.log, World: c.world, Blobs: c.blobs,
		Conn: c.server.Coordinator(), Logger: testLog,
		BeginWithin: time.Minute, Now: func() time.Time { return time.Now().Add(2 * time.Minute) }})
	c.background(late.Run)
	var after protocol.Assignments
	require.NoError(t, c.send(node, protocol.HeartbeatSubject("n1"), heartbeatOf("a", 3), &after))
	require.Empty(t, after.Train)
	life := c.life()
	require.Equal(t, domain.JobReQueueingState, life.State)
	require.Contains(t, life.Status.Message, "n1 did not start the attempt within 1m0s")
}

// TestAddonLoadTimesOut checks that an engine that hangs while it loads an addon does not prevent
// the replica from being ready.
func TestAddonLoadTimesOut(t *testing.T) {
	t.Parallel()
	c := startWithInputs(t)
	release := make(chan struct{})
	defer close(release)
	const within = 2 * time.Second // timeout for loading the model, and for loading an addon
	a, err := agent.New(agent.Options{Node: "n1", Token: "token of n1", Key: keyOf(t, "n1"), URL: c.server.URL(),
		Dir: t.TempDir(), Log: testLog, LoadWithin: within,
		Engine: simulated.New(simulated.Options{Fault: func(a simulated.Action) error {
			if a.Name == simulated.LoadAddon {
				<-release
			}
			return nil
		}})})
	require.NoError(t, err)
	c.background(a.Run)
	c.ready("n1")
	r := c.deployForAddons("n1")
	c.load("polite")
	_, failed := c.addon("polite", domain.ModelFailedState)
	require.Contains(t, failed.Status.Message, "did not load the addon within 2s")
	c.serving(r.ID)
}

// TestShapeLimitsLoadedAddons checks that a deployment with a shape that has numLoraDeviceCached
// serves more addons than that, and that its engine never has more.
func TestShapeLimitsLoadedAddons(t *testing.T) {
	c := startWithInputs(t)
	engine := simulated.New(simulated.Options{Seed: 7})
	counted := &countingCompleter{Completer: engine.Completer}
	engine.Completer = counted
	c.agent("n1", engine)
	shape := domain.NewName("acme", domain.DeploymentShapes.Collection, "few")
	c.do(domain.Intend(domain.DeploymentShapes, shape, domain.CreateDeploymentShape{ShapeSpec: domain.ShapeSpec{
		BaseModel: string(modelName), NumLoraDeviceCached: 1}}))
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: string(modelName), MinReplicaCount: 1, EnableAddons: true,
		DeploymentShape: domain.ShapeVersionName(shape, "v1")}}))
	r := c.serving(c.placeReplica("n1").ID)
	c.load("polite")
	c.load("terse")
	polite, _ := c.addon("polite", domain.ModelDeployedState)
	terse, _ := c.addon("terse", domain.ModelDeployedState)
	texts := map[string]string{}
	for range 3 {
		for _, id := range []string{polite, terse} {
			text, err := c.complete(r, id)
			require.NoError(t, err)
			require.Contains(t, []string{"", text}, texts[id])
			texts[id] = text
		}
	}
	require.NotEqual(t, texts[polite], texts[terse])
	require.EqualValues(t, 1, counted.peak.Load())
	require.Greater(t, counted.loads.Load(), int64(4), "each request needs the other addon")
}

// A countingCompleter counts the addons that its models have loaded.
type countingCompleter struct {
	engines.Completer
	loads, loaded, peak atomic.Int64
}

func (c *countingCompleter) Load(ctx context.Context, files engines.ModelFiles) (engines.Model, error) {
	m, err := c.Completer.Load(ctx, files)
	return countingModel{m.(engines.AddonLoader), c}, err
}

type countingModel struct {
	engines.AddonLoader
	of *countingCompleter
}

func (m countingModel) LoadAddon(ctx context.Context, id, dir string) error {
	m.of.loads.Add(1)
	n := m.of.loaded.Add(1)
	m.of.peak.Store(max(m.of.peak.Load(), n))
	return m.AddonLoader.LoadAddon(ctx, id, dir)
}

func (m countingModel) UnloadAddon(id string) error {
	m.of.loaded.Add(-1)
	return m.AddonLoader.UnloadAddon(id)
}

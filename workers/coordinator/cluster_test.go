package coordinator_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/blobs/reconcile"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/simulated"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/workers/agent"
	"anneal/workers/coordinator"
)

// waitTimeout is the maximum duration of a wait in a test.
const waitTimeout = time.Minute

// A cluster is a control plane without schedulers: the test places jobs and replicas.
type cluster struct {
	*testing.T
	log    eventlog.Log
	world  *projections.World
	blobs  *blobs.Store
	bucket string // directory in which files are stored
	server *natsserver.Server
	stop   func()                      // stops the coordinator
	stops  map[string]func()           // stops agents, by node
	http   *http.Client                // HTTP client of the agents; nil is their default
	plan   atomic.Pointer[faults.Plan] // plan of injected faults; nil injects none

	admission atomic.Pointer[coordinator.Admission]
	journal   *operations.Store
	idleAfter time.Duration                  // option of the next coordinator
	reader    atomic.Pointer[secrets.Reader] // code that has read a secret last
	ahead     atomic.Int64                   // nanoseconds by which the coordinator's clock is ahead
}

var testLog = slog.New(slog.NewTextHandler(io.Discard, nil))

func TestMain(m *testing.M) {
	if os.Getenv("ANNEAL_TEST_LOG") != "" {
		testLog = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	if os.Getenv(childNode) != "" {
		runChild()
		return
	}
	os.Exit(m.Run())
}

// startWithInputs starts a cluster that has the model and the dataset of the job.
func startWithInputs(t *testing.T) *cluster {
	t.Helper()
	c := start(t)
	c.createInputs()
	return c
}

func start(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{T: t, log: eventlog.NewMemory(), world: projections.NewWorld(), bucket: t.TempDir(),
		stops: map[string]func(){}}
	c.listen("127.0.0.1:0")
	var err error
	files := httptest.NewUnstartedServer(nil)
	c.blobs, err = blobs.Open(t.Context(), blobs.Options{Dir: c.bucket, BaseURL: "http://" +
		files.Listener.Addr().String() + "/blobs", Key: []byte("0123456789abcdef"),
		Intercept: func(change, key string, do func() error) error { return c.plan.Load().Do(change, key, do) }})
	require.NoError(t, err)
	files.Config.Handler = c.blobs.Handler()
	files.Start()
	t.Cleanup(files.Close)
	c.background(func(ctx context.Context) error { return c.world.Run(ctx, c.log) })
	c.open()
	return c
}

// listen starts a NATS server at the address.
func (c *cluster) listen(address string) {
	server, err := natsserver.Start(natsserver.Options{Dir: c.TempDir(), Listen: address, NoSync: true,
		VerifyNode: func(ctx context.Context, login natsserver.NodeLogin) error {
			return c.admission.Load().Admit(ctx,
				login)
		}})
	require.NoError(c, err)
	c.Cleanup(server.Close)
	c.server = server
	c.admission.Store(&coordinator.Admission{Log: c.log, World: c.world, Now: time.Now, Logger: testLog,
		ReadToken: func(token string, _ time.Time) (coordinator.JoinToken, error) {
			if node, ok := strings.CutPrefix(token, "token of "); ok {
				return coordinator.JoinToken{ID: token, Node: node}, nil
			}
			return coordinator.JoinToken{}, errors.New("no token")
		}})
}

// keyOf returns a node's key, which is derived from the node's name.
func keyOf(t testing.TB, node string) nkeys.KeyPair {
	key, err := fixedKey(node)
	require.NoError(t, err)
	return key
}

func fixedKey(node string) (nkeys.KeyPair, error) {
	seed := sha256.Sum256([]byte(node))
	return nkeys.FromRawSeed(nkeys.PrefixByteUser, seed[:])
}

// restart restarts the NATS server, at the same address, and the coordinator.
func (c *cluster) restart() {
	address := strings.TrimPrefix(c.server.URL(), "nats://")
	c.stop()
	c.server.Close()
	c.listen(address)
	c.open()
}

// background calls run in a goroutine, and cancels its context when stop is called or the test
// ends. It fails the test if run returns an error other than context.Canceled.
func (c *cluster) background(run func(context.Context) error) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- run(ctx) }()
	var stopped bool
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			require.NoError(c, err)
		}
	}
	c.Cleanup(stop)
	return stop
}

// open starts a coordinator without the state of an earlier coordinator.
func (c *cluster) open() {
	open := func(_ context.Context, by secrets.Reader, name domain.Name, _ domain.Sealed) (domain.SecretValue, error) {
		c.reader.Store(&by)
		return domain.SecretValue("opened " + name), nil
	}
	log := c.log
	if plan := c.plan.Load(); plan != nil {
		log = plan.Log(log)
	}
	c.journal = operations.New(c.blobs, nil)
	agents := coordinator.New(coordinator.Options{Log: log, Journal: c.journal, IdleAfter: c.idleAfter,
		World: c.world, Blobs: c.blobs,
		Conn: c.server.Coordinator(), OpenSecret: open, Secret: []byte("0123456789abcdef"),
		Now:    func() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) },
		Logger: testLog})
	c.stop = c.background(agents.Run)
}

// files returns the files below a directory, after reconciliation.
func (c *cluster) files(directory string) domain.Files {
	c.Helper()
	r := reconcile.New(reconcile.Options{Log: c.log, World: c.world, Blobs: c.blobs, Keys: secrets.NewMemoryVault()})
	require.NoError(c, r.Reconcile(c.Context(), 0))
	files, err := c.blobs.Files(c.Context(), directory)
	require.NoError(c, err)
	return files
}

// agent runs an agent in this process and waits until it is registered.
func (c *cluster) agent(node string, engine engines.Engine) (stop func()) {
	return c.agentIn(node, c.TempDir(), engine)
}

func (c *cluster) agentIn(node, dir string, engine engines.Engine) (stop func()) {
	a, err := agent.New(agent.Options{Node: node, Token: "token of " + node, Key: keyOf(c, node), URL: c.server.URL(),
		Dir: dir, Engine: engine, Sound: readSamples, Log: testLog, HTTP: c.http,
		Capacity: map[string]int{"VENDOR_A_L4_24GB": 2}, LeaveWithin: 10 * time.Second})
	require.NoError(c, err)
	stop = c.background(a.Run)
	c.ready(node)
	return stop
}

func (c *cluster) ready(node string) {
	c.until("the node is registered", func(v *projections.View) bool {
		row, ok := v.Nodes.Get(nodeName(node))
		return ok && row.State.State == domain.NodeReady
	})
}

// untilDeployment waits until the deployment meets a condition, and returns its state.
func (c *cluster) untilDeployment(what string, met func(domain.Deployment) bool) domain.Deployment {
	c.Helper()
	var row *projections.Row[domain.Deployment]
	c.until(what, func(v *projections.View) bool {
		row, _ = v.Deployments.Get(deploymentName)
		return met(row.State)
	})
	return row.State
}

// put stores a file of the bucket, and returns its size.
func (c *cluster) put(key string, content []byte) int64 {
	c.Helper()
	size, err := c.blobs.Put(c.Context(), key, bytes.NewReader(content))
	require.NoError(c, err)
	return size
}

// until waits until the view of the world meets a condition, and returns the view.
func (c *cluster) until(what string, met func(*projections.View) bool) *projections.View {
	c.Helper()
	late := time.After(waitTimeout)
	for {
		view := c.world.View()
		if met(view) {
			return view
		}
		select {
		case <-c.world.Changed(view.Position):
		case <-late:
			require.FailNow(c, "timeout waiting for condition", what)
		}
	}
}

// do records commands, as a user or a scheduler would.
func (c *cluster) do(intents ...domain.Intent) {
	c.Helper()
	for _, intent := range intents {
		change, err := eventlog.Do(c.Context(), c.log, c.world, eventlog.Request{Time: time.Now(), Actor: "test"},
			intent)
		require.NoError(c, err)
		require.NoError(c, c.world.WaitFor(c.Context(), change.Position()))
	}
}

const (
	modelName   = domain.Name("accounts/acme/models/base")
	datasetName = domain.Name("accounts/acme/datasets/rows")
	jobName     = domain.Name("accounts/acme/supervisedFineTuningJobs/job")
	outputName  = domain.Name("accounts/acme/models/tuned")
)

func nodeName(id string) domain.Name { return domain.NewName(domain.System, "nodes", id) }

// createInputs stores a model and a dataset of 80 rows: ten steps per epoch.
func (c *cluster) createInputs() {
	files := domain.Files{Prefix: "models/acme/base/", Sizes: map[string]int64{}}
	for name, text := range map[string]string{"config.json": `{"model_type":"llama"}`,
		"model.safetensors": "\x02\x00\x00\x00\x00\x00\x00\x00{}"} {
		n := c.put(files.Prefix+name, []byte(text))
		files.Sizes[name] = n
	}
	c.do(domain.Intend(domain.Models, modelName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000, ContextLength: 512}, Files: files}))

	rows := strings.Repeat(`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`+"\n", 80)
	n := c.put("datasets/acme/rows/1/rows.jsonl", []byte(rows))
	c.do(domain.Intend(domain.Datasets, datasetName, domain.CreateDataset{}))
	c.do(domain.Intend(domain.Datasets, datasetName, domain.UploadDataset{Upload: 1,
		Files: domain.Files{Prefix: "datasets/acme/rows/1/", Sizes: map[string]int64{"rows.jsonl": n}}}))
	c.do(domain.Intend(domain.Datasets, datasetName, domain.AcceptDataset{Upload: 1,
		DatasetStats: domain.DatasetStats{Format: domain.FormatChat, ExampleCount: 80}}))
}

// submit creates and queues a job of 40 steps, with a checkpoint every ten.
func (c *cluster) submit(change ...func(*domain.SupervisedSpec)) {
	spec := domain.SupervisedSpec{Dataset: string(datasetName),
		TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), OutputModel: "tuned", Epochs: 4}}
	for _, one := range change {
		one(&spec)
	}
	c.queue(jobName, domain.Intend(domain.SupervisedJobs, jobName, domain.CreateSupervisedJob{SupervisedSpec: spec,
		ID: "job", CreatedBy: "ada"}))
}

// startJob creates and queues the job, and starts its first attempt on a node.
func (c *cluster) startJob(node string) {
	c.Helper()
	c.submit()
	c.place(node)
}

// place starts the job's next attempt on a node.
func (c *cluster) place(node string) {
	c.Helper()
	c.placeWith(node, domain.Resources{CPUMilli: 500, MemoryMiB: 16})
}

// placeWith starts the job's next attempt on a node with resources.
func (c *cluster) placeWith(node string, takes domain.Resources) {
	c.Helper()
	attempt := c.life().Attempt + 1
	c.do(domain.Intend(domain.Nodes, nodeName(node), domain.PlaceAllocation{Allocation: domain.Allocation{
		ID: domain.AllocationID(jobName, attempt), For: jobName, Attempt: attempt, Resources: takes}}),
		domain.IntendJob(jobName, domain.StartJob{Attempt: attempt, Nodes: []domain.Name{nodeName(node)},
			Resources: takes}))
}

func (c *cluster) life() domain.JobLife {
	row, ok := projections.TableOf(c.world.View(), domain.SupervisedJobs).Get(jobName)
	if !ok {
		return domain.JobLife{}
	}
	return row.State.JobLife
}

// reaches waits until the job is in a state.
func (c *cluster) reaches(state string) domain.JobLife {
	c.Helper()
	c.until("the job is "+state, func(v *projections.View) bool {
		row, ok := projections.TableOf(v, domain.SupervisedJobs).Get(jobName)
		return ok && row.State.State == state
	})
	return c.life()
}

// saved waits until the job has a checkpoint of the step.
func (c *cluster) saved(step int) {
	c.Helper()
	c.until("there is a checkpoint of step "+strconv.Itoa(step), func(v *projections.View) bool {
		row, _ := projections.TableOf(v, domain.SupervisedJobs).Get(jobName)
		last, ok := row.State.LastCheckpoint()
		return ok && last.Step == step
	})
}

// hangAt returns an engine that hangs at a training step, and after the first token of a
// completion, until it is stopped.
func hangAt(step int) engines.Engine {
	at := func(hang int) func(int) time.Duration {
		return func(now int) time.Duration {
			if now == hang {
				return time.Hour
			}
			return 0
		}
	}
	return simulated.New(simulated.Options{Seed: 7, StepTime: at(step), TokenTime: at(2)})
}

// recordFirst returns an engine that stores the number of its first training step in first.
func recordFirst(first *int) engines.Engine {
	return simulated.New(simulated.Options{Seed: 7, Fault: func(a simulated.Action) error {
		if a.Name == simulated.TrainStep && *first == 0 {
			*first = a.Step
		}
		return nil
	}})
}

// A child is an agent in a separate process, so that a test can kill it.

const childNode, childURL, childDir, childHang = "ANNEAL_TEST_NODE", "ANNEAL_TEST_URL", "ANNEAL_TEST_DIR",
	"ANNEAL_TEST_HANG"

// hangNever as the step of a child stands for the embedded engine, which stores a recovery
// checkpoint of a training run every childRecovery.
const (
	hangNever     = -1
	childRecovery = 100 * time.Millisecond
)

func runChild() {
	step, _ := strconv.Atoi(os.Getenv(childHang))
	key, err := fixedKey(os.Getenv(childNode))
	if err != nil {
		panic(err)
	}
	engine := hangAt(step)
	if step == hangNever {
		engine = embeddedEngine()
	}
	a, err := agent.New(agent.Options{Node: os.Getenv(childNode), Token: "token of " + os.Getenv(childNode), Key: key,
		URL: os.Getenv(childURL), RecoveryInterval: childRecovery,
		Dir: os.Getenv(childDir), Engine: engine, Sound: readSamples, Log: testLog})
	if err == nil {
		err = a.Run(context.Background())
	}
	if err != nil {
		testLog.Error("the child", "error", err)
		os.Exit(1)
	}
}

// child starts an agent in a child process. Its engine hangs at training step hang, or after the
// first token of a completion. kill kills the process.
func (c *cluster) child(node, dir string, hang int) (kill func()) {
	program, err := filepath.Abs(os.Args[0])
	require.NoError(c, err)
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), childNode+"="+node, childURL+"="+c.server.URL(), childDir+"="+dir,
		childHang+"="+strconv.Itoa(hang))
	cmd.Stderr = os.Stderr
	require.NoError(c, cmd.Start())
	killed := false
	kill = func() {
		if !killed {
			killed = true
			require.NoError(c, cmd.Process.Kill())
			require.Error(c, cmd.Wait())
		}
	}
	c.Cleanup(kill)
	c.ready(node)
	return kill
}

// connectNode connects as a node, so that the test can send messages of the node.
func (c *cluster) connectNode(node string) *nats.Conn {
	conn, err := nats.Connect(c.server.URL(), natsserver.AgentOptions(node, "token of "+node, keyOf(c, node))...)
	require.NoError(c, err)
	c.Cleanup(conn.Close)
	return conn
}

// blockingTrainer is a trainer that runs until it is stopped, and signals its start and its end.
type blockingTrainer struct{ begun, stopped chan struct{} }

func (p blockingTrainer) Train(ctx context.Context, _ engines.TrainRequest,
	_ engines.TrainWatcher) (engines.TrainResult,
	error) {
	close(p.begun)
	<-ctx.Done()
	close(p.stopped)
	return engines.TrainResult{}, ctx.Err()
}

// wait waits for a signal.
func (c *cluster) wait(what string, signal <-chan struct{}) {
	c.Helper()
	select {
	case <-signal:
	case <-time.After(waitTimeout):
		require.FailNow(c, "timeout waiting for condition", what)
	}
}

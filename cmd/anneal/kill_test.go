package main_test

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// A transferBlock is a proxy between workers and the files of a server. It can block transfers, so
// that a job stays in the phase in which the test kills its worker.
type transferBlock struct {
	to *httputil.ReverseProxy

	mu     sync.Mutex
	holds  func(*http.Request) bool // nil forwards all transfers
	held   chan struct{}            // closed when a transfer is blocked
	opened chan struct{}
}

// block blocks the transfers for which holds returns true; the first of them closes held. open
// forwards all transfers again, but drops the blocked ones, because their sender has been killed.
func (g *transferBlock) block(holds func(*http.Request) bool) (held <-chan struct{}, open func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.holds, g.held, g.opened = holds, make(chan struct{}), make(chan struct{})
	opened := g.opened
	return g.held, sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.holds = nil
		close(opened)
	})
}

func (g *transferBlock) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	hold, opened := g.holds != nil && g.holds(r), g.opened
	if hold {
		select {
		case <-g.held:
		default:
			close(g.held)
		}
	}
	g.mu.Unlock()
	if hold {
		<-opened
		panic(http.ErrAbortHandler)
	}
	g.to.ServeHTTP(w, r)
}

// startBlockable starts a fleet whose transfers of files pass through the returned transferBlock.
func startBlockable(t *testing.T, args ...string) (*fleet, *transferBlock) {
	t.Helper()
	address := freePort(t)
	g := &transferBlock{to: httputil.NewSingleHostReverseProxy(&url.URL{Scheme: "http", Host: address})}
	g.to.ErrorLog = log.New(io.Discard, "", 0) // transfers end with the worker that sent them
	server := httptest.NewServer(g)
	t.Cleanup(server.Close)
	args = append([]string{"--listen", address, "--public-url", server.URL, "--lost-after", "6s"}, args...)
	return newFleet(t, args...), g
}

// A killableJob is a job of one kind that takes some dozens of steps, so that its first checkpoint
// is stored long before the job ends.
type killableJob struct {
	collection string
	prepare    func(*testing.T, *fleet) object // creates what the job requires, and returns the request
}

const killedJobModel = "killed"

func (k killableJob) path() string { return "/" + k.collection + "/" + killedJobModel }

func (k killableJob) create(user caller, spec object) {
	user.t.Helper()
	user.must(http.MethodPost, "/"+k.collection+"?"+strings.TrimSuffix(k.collection, "s")+"Id="+killedJobModel, spec)
}

// remove deletes the job, so that it can be created again under the same name, which is the seed
// of its training.
func (k killableJob) remove(user caller) {
	user.t.Helper()
	for _, path := range []string{k.path(), "/models/" + killedJobModel} {
		user.must(http.MethodDelete, path, nil)
		eventually(user.t, path+" is gone", func() bool {
			status, _, err := user.do(http.MethodGet, path, nil)
			return err == nil && status == http.StatusNotFound
		})
	}
}

var killableJobs = map[string]killableJob{
	"supervised": {"supervisedFineTuningJobs", func(_ *testing.T, f *fleet) object {
		f.user().dataset("rows", 60)
		return jobOn("rows", 6)
	}},
	"preferences": {"dpoJobs", func(t *testing.T, f *fleet) object {
		data := testutil.ReadFile(t, filepath.Join("..", "..", "examples", "loudly.jsonl"))
		f.user().rows("rows", strings.Join(strings.SplitAfter(string(data), "\n")[:60], ""))
		return jobOnRows(object{"epochs": 6, "batchSize": 160}, object{})
	}},
	"scored samples": {"rlorTrainerJobs", func(_ *testing.T, f *fleet) object {
		var rows strings.Builder
		for i := range 40 {
			fmt.Fprintf(&rows, `{"samples":[{"good":%g,"messages":[{"role":"user","content":"Name %d."},`+
				`{"role":"assistant","content":"yes %d"}]},`+
				`{"good":0,"messages":[{"role":"user","content":"Name %d."},{"role":"assistant","content":"no"}]}]}`+"\n",
				0.5+float64(i)/100, i, i, i)
		}
		f.user().rows("rows", rows.String())
		// jobs of the other kinds train adapters
		return jobOnRows(object{"epochs": 4, "batchSizeSamples": 4, "loraRank": 0},
			object{"rewardWeights": []string{"good=1"}})
	}},
	"reinforcement": {"reinforcementFineTuningJobs", func(t *testing.T, f *fleet) object {
		if err := sandbox.New(sandbox.Options{}).Check(t.Context()); err != nil {
			t.Skip(err)
		}
		code := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(code, "main.py"), []byte("def evaluate(messages, **kwargs):\n"+
			"    answer = messages[-1]['content']\n    return {'score': sum(map(ord, answer)) % 97 / 97}\n"), 0o600))
		f.run("evaluator", "create", "sums", "--dir", code, "--entry-point", "main.py::evaluate").ok(t)
		var rows strings.Builder
		for i := range 10 {
			fmt.Fprintf(&rows, `{"messages":[{"role":"user","content":"Name %d."}]}`+"\n", i)
		}
		f.user().rows("rows", rows.String())
		// Three steps learn from the responses to a prompt: a checkpoint is stored between them.
		return jobOnRows(object{"epochs": 3, "batchSizeSamples": 2}, object{"evaluator": "accounts/default/evaluators/sums",
			"inferenceParameters": object{"maxOutputTokens": 5, "temperature": 1, "responseCandidatesCount": 6}})
	}},
}

// jobOnRows returns a job on the dataset "rows".
func jobOnRows(config, more object) object {
	config["baseModel"] = baseModel
	more["dataset"], more["trainingConfig"] = "accounts/default/datasets/rows", config
	return more
}

// rows creates a dataset of JSON lines, and waits until it is READY.
func (c caller) rows(id, lines string) {
	c.t.Helper()
	c.must(http.MethodPost, "/datasets", object{"datasetId": id, "dataset": object{}})
	status, answer, err := c.upload(id, []byte(lines))
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%v", answer)
	c.until("/datasets/"+id, "state", "READY")
}

// A workerKill is a phase in which a worker is killed.
type workerKill struct {
	phase   string
	holds   func() func(*http.Request) bool
	reached func(*testing.T, caller, string) // waits for a state of the job at a path, once a transfer is blocked
	again   bool                             // the killed worker restarts; otherwise another worker replaces it
}

var workerKills = []workerKill{
	{"after a checkpoint", afterFirst, func(t *testing.T, user caller, job string) {
		eventually(t, "there is a checkpoint", func() bool { return len(user.list(job+"/checkpoints", "checkpoints")) == 1 })
	}, false},
	{"downloading", func() func(*http.Request) bool {
		return func(r *http.Request) bool {
			return r.Method == http.MethodGet && strings.HasSuffix(r.URL.Path, "/model.safetensors")
		}
	}, func(*testing.T, caller, string) {}, true},
	{"before the first checkpoint", func() func(*http.Request) bool { return stores("") },
		func(t *testing.T, user caller, job string) {
			require.Empty(t, user.list(job+"/checkpoints", "checkpoints"))
			require.Equal(t, "JOB_STATE_RUNNING", user.get(job)["state"])
		}, true},
	{"writing results", func() func(*http.Request) bool { return stores("models/") },
		func(_ *testing.T, user caller, job string) {
			user.until(job, "state", "JOB_STATE_WRITING_RESULTS")
		}, false},
}

// stores returns a filter of uploads to a directory.
func stores(dir string) func(*http.Request) bool {
	return func(r *http.Request) bool {
		return r.Method == http.MethodPut && strings.HasPrefix(r.URL.Path, "/blobs/"+dir)
	}
}

// afterFirst returns a filter of uploads except those of the first checkpoint.
func afterFirst() func(*http.Request) bool {
	first, stored := "", stores("")
	return func(r *http.Request) bool {
		dir, _, checkpoint := cutCheckpoint(r.URL.Path)
		if !stored(r) {
			return false
		}
		if first == "" && checkpoint {
			first = dir
		}
		return !checkpoint || dir != first
	}
}

// cutCheckpoint splits the path of a checkpoint's file after its directory. found is false for
// other paths.
func cutCheckpoint(path string) (dir, file string, found bool) {
	before, after, found := strings.Cut(path, "/checkpoints/")
	id, file, _ := strings.Cut(after, "/")
	return before + "/checkpoints/" + id, file, found
}

// TestWorkerIsKilledInEveryPhase kills a worker in each phase of each kind of job. The same worker
// after a restart, or another one, must continue the job, and the resulting model must equal that
// of an uninterrupted training.
func TestWorkerIsKilledInEveryPhase(t *testing.T) {
	t.Parallel()
	for name, kind := range killableJobs {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, g := startBlockable(t)
			spec, user, recorder := kind.prepare(t, f), f.user(), f.tail()
			f.work("calm")
			kind.create(user, spec)
			user.until(kind.path(), "state", "JOB_STATE_COMPLETED")
			want, losses, rollouts := user.weights(killedJobModel), kind.losses(user), kind.rollouts(user)
			require.Zero(t, f.workers["calm"].end())
			require.GreaterOrEqual(t, len(want), 2, "%v", want)
			require.Greater(t, len(losses), 40, "there are intermediate checkpoints")
			phases := workerKills
			if testing.Short() {
				phases = phases[:1]
			}
			for i, k := range phases {
				t.Run(k.phase, func(t *testing.T) {
					kind.remove(user)
					before := requeues(t, user, recorder)
					killed, resumes := k.kill(t, f, g, fmt.Sprint("worker-", i), kind.path(), func() { kind.create(user, spec) })
					user.until(kind.path(), "state", "JOB_STATE_COMPLETED")
					require.Equal(t, want, user.weights(killedJobModel))
					require.Equal(t, losses, kind.losses(user))
					require.Equal(t, rollouts, kind.rollouts(user))
					require.Equal(t, before+1, requeues(t, user, recorder))
					began := timeOf(t, user.curve(kind.path())[0])
					require.Equal(t, resumes, began.Before(killed), "steps before the checkpoint are not trained again")
				})
			}
			require.Contains(t, f.run("log", "verify").ok(t), "equal")
		})
	}
}

// kill starts a job, kills its worker in the phase, and starts the worker that continues the job.
// It returns the time of the kill, and whether there is a checkpoint to resume from.
func (k workerKill) kill(t *testing.T, f *fleet, g *transferBlock, worker, job string, begin func()) (killed time.Time,
	resumes bool) {
	t.Helper()
	held, open := g.block(k.holds())
	defer open()
	f.work(worker)
	begin()
	select {
	case <-held:
	case <-time.After(patience):
		require.FailNow(t, "the job was never "+k.phase)
	}
	k.reached(t, f.user(), job)
	resumes = len(f.user().list(job+"/checkpoints", "checkpoints")) > 0
	f.workers[worker].kill()
	killed = time.Now()
	open()
	if !k.again {
		worker += "-next"
	}
	f.work(worker)
	t.Cleanup(func() { require.Zero(t, f.workers[worker].end()) })
	return killed, resumes
}

// requeues returns how often jobs were requeued so far.
func requeues(t *testing.T, user caller, recorder *recorder) (n int) {
	t.Helper()
	history := user.history()
	for _, h := range recorder.upTo(t, positionOf(t, history[len(history)-1])) {
		if strings.HasSuffix(h.kind, ".requeued.v1") {
			n++
		}
	}
	return n
}

// weights returns the digests of a model's files, except for its metrics, which contain times.
func (c caller) weights(model string) map[string]string {
	c.t.Helper()
	sums := map[string]string{}
	links, _ := c.get("/models/" + model + ":getDownloadEndpoint")["filenameToSignedUrls"].(object)
	for name, link := range links {
		if name == "metrics.jsonl" {
			continue
		}
		res, err := caller{http: c.http}.send(http.MethodGet, link.(string), nil)
		require.NoError(c.t, err)
		hash := sha256.New()
		_, err = io.Copy(hash, res.Body)
		require.NoError(c.t, err)
		require.NoError(c.t, res.Body.Close())
		sums[filepath.Base(name)] = hex.EncodeToString(hash.Sum(nil))
	}
	return sums
}

// losses returns the loss of each step of the job.
func (k killableJob) losses(user caller) (all []string) {
	user.t.Helper()
	for _, row := range user.curve(k.path()) {
		all = append(all, fmt.Sprint(row["step"], row["train/loss"], row["reward/mean"], row["eval/loss"]))
	}
	return all
}

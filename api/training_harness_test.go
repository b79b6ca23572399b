package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/train/pool"
	"anneal/internal/testutil"
	"anneal/projections"
	protocol "anneal/tinker"
)

// A trainingHarness is a server with a trainer job in service mode, and an executor that trains a
// tiny model: it takes operations from the journal as an agent does.
type trainingHarness struct {
	*harness
	job     domain.Name
	host    string
	journal *operations.Store
	pool    engines.TrainPool
	stop    context.CancelFunc
	running sync.WaitGroup
	world   *projections.World
}

const trainVocab = 41

func newTrainingHarness(t testing.TB) *trainingHarness {
	base := newHarness(t, request.Limits{})
	h := &trainingHarness{journal: operations.New(base.store, nil)}
	h.harness = base.another(func(o *Options) {
		o.Direct, o.Journal, o.TrainingHold = "direct.test", h.journal, patience
	})
	h.world = h.harness.world
	weights := llama.NewWeights(llama.Config{
		ModelType: "qwen2", HiddenSize: 24, IntermediateSize: 40, Layers: 2, Heads: 4, KVHeads: 2, HeadDim: 6,
		VocabSize: trainVocab, MaxPositions: 256, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true, HiddenAct: "silu",
		InitializerRange: 0.25, TorchDType: "float32",
	})
	weights.Initialize(7)
	h.pool = pool.New(weights, weights.Hash(), engines.TrainPoolRequest{Parallelism: 1})
	h.job, h.host = h.createService("svc")
	return h
}

// createService creates a trainer job with serviceMode that is IDLE, and returns its host name.
func (h *trainingHarness) createService(id string) (domain.Name, string) {
	h.Helper()
	made := h.call("POST", acme+"/rlorTrainerJobs?rlorTrainerJobId="+id, "user",
		`{"serviceMode": true, "trainingConfig": {"baseModel": "`+publicBase+`"}}`)
	require.Equal(h, 200, made.status, "%s", made.body)
	name := domain.NewName("acme", domain.TrainerJobs.Collection, id)
	h.do(domain.IntendJob(name, domain.StartValidation{}),
		domain.Intend(domain.TrainerJobs, name, domain.Command[domain.TrainerJob](domain.AwaitStep{})))
	host := made.json(h)["directRouteHandle"].(string)
	require.Regexp(h, `^[a-z2-7]{32}\.direct\.test$`, host)
	return name, host
}

// execute starts the executor: until it is stopped, it starts an attempt of the job when the job is
// PENDING, opens the runs, and executes their operations and samples.
func (h *trainingHarness) execute() {
	ctx, stop := context.WithCancel(context.Background())
	h.stop = sync.OnceFunc(func() {
		stop()
		h.running.Wait()
	})
	h.Cleanup(h.stop)
	h.running.Go(func() { h.follow(ctx) })
	h.running.Go(func() { h.sample(ctx) })
}

func (h *trainingHarness) row() *projections.Row[domain.TrainerJob] {
	row, ok := projections.TableOf(h.world.View(), domain.TrainerJobs).Get(h.job)
	require.True(h, ok)
	return row
}

func (h *trainingHarness) follow(ctx context.Context) {
	opened := map[domain.Name]bool{}
	for ctx.Err() == nil {
		view := h.world.View()
		row := h.row()
		if row.State.State == domain.JobPendingState {
			assert.NoError(h, h.carryOut(ctx, domain.IntendJob(h.job, domain.StartJob{
				Attempt: row.State.NextAttempt(), Nodes: []domain.Name{"accounts/system/nodes/n1"}})))
			continue
		}
		if row.State.State == domain.JobRunningState {
			for run := range view.Runs.In("acme") {
				if run.State.Live() && !opened[run.Name] {
					opened[run.Name] = true
					h.running.Go(func() { h.train(ctx, run, row.State.Attempt) })
				}
			}
		}
		select {
		case <-h.world.Changed(view.Position):
		case <-ctx.Done():
		}
	}
}

// train opens a run and executes its operations, from the newest recovery checkpoint on.
func (h *trainingHarness) train(ctx context.Context, row *projections.Row[domain.TrainingRun], attempt int) {
	lane := operations.Lane{Account: "acme", Job: row.State.JobEvent, ID: row.Name.ID()}
	c := row.State.Config
	run, err := h.pool.CreateRun(ctx, engines.TrainRunConfig{Rank: c.Rank, Alpha: c.Alpha, Seed: c.Seed,
		TrainAttn: c.TrainAttn, TrainMLP: c.TrainMLP, TrainUnembed: c.TrainUnembed})
	var refused *domain.Error
	if errors.As(err, &refused) {
		assert.NoError(h, h.journal.Finish(ctx, lane, 0, operations.Result{Attempt: attempt, Err: refused}))
		return
	}
	if !assert.NoError(h, err) {
		return
	}
	defer func() { _ = run.Close() }()
	if h.carryOut(ctx, domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.OpenTrainingRun{Attempt: attempt, BaseHash: h.pool.BaseHash(), Kernel: h.pool.Kernel()}))) != nil {
		return
	}
	assert.NoError(h, h.journal.Finish(ctx, lane, 0, operations.Result{Attempt: attempt}))
	for seq := int64(0); ; seq++ {
		next, ok, err := h.journal.Next(ctx, lane, seq)
		if !ok || err != nil {
			return
		}
		o, err := engines.DecodeTrainOperation(next.Body)
		var result engines.TrainOperationResult
		if err == nil {
			result, err = h.operate(ctx, &run, row, o, next.Seq, attempt)
		}
		if ctx.Err() != nil {
			return
		}
		assert.NoError(h, h.journal.Finish(ctx, lane, next.Seq, resultOf(result, err, attempt)))
	}
}

func resultOf(result engines.TrainOperationResult, err error, attempt int) operations.Result {
	out := operations.Result{Attempt: attempt}
	if err != nil {
		out.Err = request.ErrorOf(err)
		return out
	}
	out.Body, _ = result.Encode()
	return out
}

func (h *trainingHarness) operate(ctx context.Context, run *engines.TrainRun, row *projections.Row[domain.TrainingRun],
	o engines.TrainOperation, seq int64, attempt int) (result engines.TrainOperationResult, err error) {
	switch {
	case o.Forward != nil:
		pass, err := (*run).Forward(ctx, *o.Forward)
		return engines.TrainOperationResult{Pass: &pass}, err
	case o.ForwardBackward != nil:
		pass, err := (*run).ForwardBackward(ctx, *o.ForwardBackward)
		return engines.TrainOperationResult{Pass: &pass}, err
	case o.Step != nil:
		step, err := (*run).Step(ctx, *o.Step)
		return engines.TrainOperationResult{Step: &step}, err
	case o.Save != nil:
		var state bytes.Buffer
		err := (*run).Save(ctx, &state)
		if err != nil {
			return result, err
		}
		return h.save(ctx, row, *run, *o.Save, domain.TrainingCheckpointTraining, seq, attempt,
			map[string][]byte{"state": state.Bytes()})
	case o.SaveSampler != nil:
		dir := h.TempDir()
		if err := (*run).Export(ctx, dir); err != nil {
			return result, err
		}
		files := map[string][]byte{}
		for _, path := range testutil.Glob(h, filepath.Join(dir, "*")) {
			files[filepath.Base(path)] = testutil.ReadFile(h, path)
		}
		return h.save(ctx, row, *run, *o.SaveSampler, domain.TrainingCheckpointSampler, seq, attempt, files)
	case o.Load != nil:
		file, err := h.store.Get(ctx, o.Load.Checkpoint+"state")
		if err != nil {
			return result, err
		}
		defer file.Close()
		restored, err := h.pool.RestoreRun(ctx, file, engines.TrainRestoreOptions{ResetOptimizer: !o.Load.Optimizer})
		if err == nil {
			_ = (*run).Close()
			*run = restored
		}
		return result, err
	}
	return result, domain.Errorf(domain.Internal, "operation %q", o.Kind())
}

func (h *trainingHarness) save(ctx context.Context, row *projections.Row[domain.TrainingRun], run engines.TrainRun,
	s engines.TrainSave, kind string, seq int64, attempt int, contents map[string][]byte) (engines.TrainOperationResult,
	error) {
	files := domain.Files{Sizes: map[string]int64{},
		Prefix: blobs.TrainingCheckpointPrefix("acme", row.State.JobEvent, row.Name.ID(),
			fmt.Sprintf("%d-%d-%s", attempt, seq, kind))}
	stored := map[string][]byte{}
	for name, content := range contents {
		files.Sizes[name], stored[files.Prefix+name] = int64(len(content)), content
	}
	if err := h.store.PutAll(ctx, stored); err != nil {
		return engines.TrainOperationResult{}, err
	}
	saved := domain.TrainingCheckpoint{Kind: kind, Name: s.Name, Seq: seq, Steps: run.Steps(), Files: files,
		Ephemeral: s.Ephemeral, Attempt: attempt}
	if s.TTLSeconds > 0 {
		at := h.clock.tick().Add(time.Duration(s.TTLSeconds) * time.Second)
		saved.ExpireTime = &at
	}
	err := h.carryOut(ctx, domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.SaveTrainingCheckpoint{TrainingCheckpoint: saved, Overwrite: s.Overwrite})))
	return engines.TrainOperationResult{Saved: &engines.TrainSaved{Name: s.Name, Files: files, Steps: run.Steps()}}, err
}

// sample executes the operations of sampling sessions.
func (h *trainingHarness) sample(ctx context.Context) {
	begun := map[operations.PendingSample]bool{}
	for ctx.Err() == nil {
		event := h.row().CreateEvent
		changed := h.journal.Changed("acme", event)
		pending, err := h.journal.Pending(ctx, "acme", event)
		if ctx.Err() == nil {
			assert.NoError(h, err)
		}
		for _, one := range pending {
			if !begun[one] {
				begun[one] = true
				h.running.Go(func() { h.drawSamples(ctx, one) })
			}
		}
		select {
		case <-changed:
		case <-ctx.Done():
		}
	}
}

func (h *trainingHarness) drawSamples(ctx context.Context, one operations.PendingSample) {
	draw := func() (result engines.TrainOperationResult, err error) {
		o, err := h.journal.Operation(ctx, one.Lane, one.Seq)
		if err != nil {
			return result, err
		}
		decoded, err := engines.DecodeTrainOperation(o.Body)
		if err != nil {
			return result, err
		}
		dir := ""
		if decoded.Sample.Weights != "" {
			dir = h.TempDir()
			for file, err := range h.store.List(ctx, decoded.Sample.Weights) {
				if err != nil {
					return result, err
				}
				content, err := h.store.Get(ctx, file.Key)
				if err != nil {
					return result, err
				}
				data, err := io.ReadAll(content)
				err = errors.Join(err, content.Close(), os.WriteFile(filepath.Join(dir, filepath.Base(file.Key)), data, 0o600))
				if err != nil {
					return result, err
				}
			}
		}
		sampler, err := h.pool.OpenSampler(ctx, dir)
		if err != nil {
			return result, err
		}
		samples, err := sampler.Sample(ctx, *decoded.Sample)
		return engines.TrainOperationResult{Samples: &samples}, errors.Join(err, sampler.Close())
	}
	result, err := draw()
	if ctx.Err() == nil {
		assert.NoError(h, h.journal.Finish(ctx, one.Lane, one.Seq, resultOf(result, err, 1)))
	}
}

// A trainingRequest is a request to a training service.
type trainingRequest struct {
	method, path string
	body         any // JSON, or bytes
	key          string
	header       map[string]string
}

// send sends a request to the host name of the job.
func (h *trainingHarness) send(q trainingRequest) response {
	h.Helper()
	body, raw := q.body.([]byte)
	if !raw && q.body != nil {
		body = testutil.Marshal(h, q.body)
	}
	if text, ok := q.body.(string); ok {
		body = []byte(text)
	}
	host := h.host
	if q.header["Host"] != "" {
		host = q.header["Host"]
	}
	path := q.path
	if !strings.HasPrefix(path, "http:") {
		path = "http://" + host + "/api/v1/" + q.path
	}
	r, err := http.NewRequestWithContext(h.Context(), q.method, path, bytes.NewReader(body))
	require.NoError(h, err)
	r.Header.Set("Content-Type", "application/json")
	r.Header.Set("X-API-Key", q.key)
	for _, name := range slices.Sorted(maps.Keys(q.header)) {
		if r.Header.Set(name, q.header[name]); q.header[name] == "" {
			r.Header.Del(name)
		}
	}
	address := strings.TrimPrefix(h.url, "http://")
	client := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DisableKeepAlives: true,
			DialContext: func(ctx context.Context, network, _ string) (net.Conn, error) {
				return new(net.Dialer).DialContext(ctx, network, address)
			}}}
	received, err := client.Do(r)
	require.NoError(h, err)
	defer received.Body.Close()
	return response{received.StatusCode, received.Header, testutil.ReadAll(h, received.Body)}
}

// post sends a JSON request with a key of the account.
func (h *trainingHarness) post(path string, body any) response {
	h.Helper()
	return h.send(trainingRequest{method: "POST", path: path, body: body, key: "tml-" + h.keys["user"]})
}

func (h *trainingHarness) get(path string) response {
	h.Helper()
	return h.send(trainingRequest{method: "GET", path: path, key: h.keys["user"]})
}

// must returns the fields of a response with status 200.
func (h *trainingHarness) must(r response) map[string]any {
	h.Helper()
	require.Equal(h, 200, r.status, "%s", r.body)
	return r.json(h)
}

// refuses requires a response with an error.
func (h *trainingHarness) refuses(r response, status int, reason string, says ...string) {
	h.Helper()
	require.Equal(h, status, r.status, "%s", r.body)
	var e protocol.Error
	require.NoError(h, json.Unmarshal(r.body, &e), "%s", r.body)
	require.Equal(h, reason, e.Reason, "%s", r.body)
	for _, part := range says {
		require.Contains(h, e.Detail, part)
	}
}

// future waits for the result of an operation that was accepted.
func (h *trainingHarness) future(submitted response) map[string]any {
	h.Helper()
	id := h.must(submitted)["request_id"]
	return h.must(h.post("retrieve_future", map[string]any{"request_id": id}))
}

// begin creates a session and a run, and returns the IDs.
func (h *trainingHarness) begin() (session, run string) {
	h.Helper()
	created := h.must(h.post("create_session", map[string]any{"tags": []string{"t"}, "sdk_version": "0.25.0"}))
	session = created["session_id"].(string)
	made := h.future(h.post("create_model", createModel(session, 0)))
	require.Equal(h, "create_model", made["type"])
	return session, made["model_id"].(string)
}

func createModel(session string, seq int) map[string]any {
	return map[string]any{"session_id": session, "model_seq_id": seq, "base_model": "default/anneal-base",
		"lora_config": map[string]any{"rank": 8, "seed": 5}}
}

// passOf returns the body of a pass of cross_entropy over one sequence.
func passOf(run string, seq int, tokens, targets []int32) map[string]any {
	return map[string]any{"model_id": run, "seq_id": seq, "forward_backward_input": map[string]any{
		"loss_fn": "cross_entropy", "data": []any{map[string]any{
			"model_input":    map[string]any{"chunks": []any{map[string]any{"tokens": tokens}}},
			"loss_fn_inputs": map[string]any{"target_tokens": map[string]any{"data": targets, "dtype": "int64"}}}}}}
}

func stepOf(run string, seq int, rate float64) map[string]any {
	return map[string]any{"model_id": run, "seq_id": seq, "adam_params": map[string]any{"learning_rate": rate}}
}

package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"

	"anneal/domain"
	"anneal/engines"
	"anneal/tinker"
	"anneal/tinker/client"
)

// A server serves the protocol from memory. It executes the operations of a run in the order of
// their numbers, and each once.
type server struct {
	pool interface {
		CreateRun(ctx context.Context, config engines.TrainRunConfig) (engines.TrainRun, error)
		OpenSampler(ctx context.Context, dir string) (engines.TrainSampler, error)
	}
	dir string // for adapters

	mu         sync.Mutex
	runs       map[string]*serverRun
	samplers   map[string]engines.TrainSampler
	results    map[string]any // by request ID; nil for one that is not executed yet
	requests   map[string]int // by path
	heartbeats int
	polls      int
	// fault, if set, is called before a request is served. It returns a status to respond with, and
	// whether the response is lost after the request was served.
	fault func(path string, n int) (status int, lost bool)
}

type serverRun struct {
	engines.TrainRun
	next  int64
	ready map[int64]func(id string) // operations that wait for their turn
}

func newServer(dir string) *server {
	return &server{pool: countingPool{}, dir: dir, runs: map[string]*serverRun{}, results: map[string]any{},
		samplers: map[string]engines.TrainSampler{}, requests: map[string]int{}}
}

// RoundTrip implements http.RoundTripper: requests need no network, so tests can use virtual time.
func (s *server) RoundTrip(r *http.Request) (*http.Response, error) {
	path := strings.TrimPrefix(r.URL.Path, tinker.BasePath)
	s.mu.Lock()
	s.requests[path]++
	n, status, lost := s.requests[path], 0, false
	if s.fault != nil {
		status, lost = s.fault(path, n)
	}
	s.mu.Unlock()
	recorder := httptest.NewRecorder()
	if status != 0 {
		writeJSON(recorder, status, tinker.Error{Detail: "injected", Reason: "FAULT"})
	} else {
		s.ServeHTTP(recorder, r)
	}
	if err := r.Context().Err(); err != nil || lost {
		return nil, errors.Join(err, errors.New("connection lost"))
	}
	return recorder.Result(), nil
}

func writeJSON(w http.ResponseWriter, status int, body any) {
	w.Header().Set("Content-Type", tinker.ContentTypeJSON)
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(body)
}

// ServeHTTP serves one request.
func (s *server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := tinker.ReadBody(r.Body, r.Header.Get("Content-Encoding"), tinker.MaxPassBody)
	var response any
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		response, err = s.serve(r, body)
	}
	var e *domain.Error
	switch {
	case errors.As(err, &e):
		writeJSON(w, http.StatusBadRequest, tinker.Error{Detail: e.Message, Code: e.Code.String(), Reason: e.Reason})
	case err != nil:
		writeJSON(w, http.StatusInternalServerError, tinker.Error{Detail: err.Error()})
	default:
		s.write(w, r, response)
	}
}

// write writes a response: in the protobuf form if it has one and the client accepts it.
func (s *server) write(w http.ResponseWriter, r *http.Request, response any) {
	binary, ok := response.(interface{ MarshalProto() []byte })
	if ok && strings.Contains(r.Header.Get("Accept"), tinker.ContentTypeProtobuf) {
		w.Header().Set("Content-Type", tinker.ContentTypeProtobuf)
		_, _ = w.Write(binary.MarshalProto())
		return
	}
	writeJSON(w, http.StatusOK, response)
}

func (s *server) serve(r *http.Request, body []byte) (any, error) {
	switch path := strings.TrimPrefix(r.URL.Path, tinker.BasePath); path {
	case "client/config":
		return tinker.NewClientConfig(), nil
	case "create_session":
		_, err := tinker.Decode[tinker.CreateSessionRequest](body)
		return tinker.CreateSessionResponse{SessionID: "session-1", WarningMessage: "the unembedding is not trained"}, err
	case "session_heartbeat":
		s.heartbeats++
		return tinker.HeartbeatResponse{Type: "session_heartbeat"}, nil
	case "get_server_capabilities":
		return tinker.ServerCapabilities{SupportedModels: []tinker.SupportedModel{{ModelName: "base"}}}, nil
	case "weights_info":
		return tinker.WeightsInfo{BaseModel: "base", IsLora: true, LoraRank: 8}, nil
	case "create_model":
		return s.createModel(body)
	case "forward_backward":
		return s.forwardBackward(r, body)
	case "optim_step", "save_weights", "save_weights_for_sampler", "load_weights":
		return s.operation(path, body)
	case "unload_model":
		s.results["unload"] = tinker.UnloadModelResponse{ModelID: "run-0"}
		return tinker.Submitted{RequestID: "unload"}, nil
	case "create_sampling_session":
		r, err := tinker.Decode[tinker.CreateSamplingSessionRequest](body)
		if err != nil {
			return nil, err
		}
		id := fmt.Sprintf("sampler-%d", *r.SamplingSessionSeqID)
		s.samplers[id], err = s.pool.OpenSampler(context.Background(), "")
		return tinker.CreateSamplingSessionResponse{SamplingSessionID: id}, err
	case "asample":
		return s.sample(body)
	case "retrieve_future":
		return s.future(body)
	}
	return nil, domain.Errorf(domain.NotFound, "no operation %s", r.URL.Path)
}

func (s *server) createModel(body []byte) (any, error) {
	r, err := tinker.Decode[tinker.CreateModelRequest](body)
	if err != nil {
		return nil, err
	}
	id := fmt.Sprintf("run-%d", *r.ModelSeqID)
	if s.runs[id] == nil {
		run, err := s.pool.CreateRun(context.Background(), r.LoraConfig.RunConfig(7))
		if err != nil {
			return nil, err
		}
		s.runs[id] = &serverRun{TrainRun: run, next: 1, ready: map[int64]func(string){}}
		s.results[id] = tinker.CreateModelResponse{ModelID: id, Type: "create_model"}
	}
	return tinker.Submitted{RequestID: id}, nil
}

// enqueue executes an operation when those before it were executed.
func (s *server) enqueue(model string, seq int64, execute func(run engines.TrainRun) (any, error)) (any, error) {
	run := s.runs[model]
	if run == nil {
		return nil, domain.Errorf(domain.NotFound, "no model %s", model)
	}
	id := fmt.Sprintf("%s/%d", model, seq)
	if _, known := s.results[id]; known {
		return tinker.Submitted{RequestID: id}, nil
	}
	s.results[id] = nil
	run.ready[seq] = func(id string) {
		result, err := execute(run.TrainRun)
		if err != nil {
			result = tinker.NewFailed(err)
		}
		s.results[id] = result
	}
	for run.ready[run.next] != nil {
		run.ready[run.next](fmt.Sprintf("%s/%d", model, run.next))
		run.next++
	}
	return tinker.Submitted{RequestID: id}, nil
}

func (s *server) forwardBackward(r *http.Request, body []byte) (any, error) {
	request, err := tinker.DecodePass(r.Header.Get("Content-Type"), body, false)
	if err != nil {
		return nil, err
	}
	pass, err := request.Pass()
	if err != nil {
		return nil, err
	}
	return s.enqueue(request.ModelID, request.SeqID, func(run engines.TrainRun) (any, error) {
		compute := run.ForwardBackward
		if request.ForwardOnly {
			compute = run.Forward
		}
		result, err := compute(context.Background(), pass)
		if err != nil {
			return nil, err
		}
		out := tinker.OutputOf(&result, tinker.TargetsPerToken(&pass))
		return &out, nil
	})
}

func (s *server) operation(path string, body []byte) (any, error) {
	switch path {
	case "optim_step":
		r, err := tinker.Decode[tinker.OptimStepRequest](body)
		if err != nil {
			return nil, err
		}
		return s.enqueue(r.ModelID, *r.SeqID, func(run engines.TrainRun) (any, error) {
			result, err := run.Step(context.Background(), r.AdamParams.Params())
			return tinker.StepResponse(result), err
		})
	case "save_weights":
		r, err := tinker.Decode[tinker.SaveWeightsRequest](body)
		if err != nil {
			return nil, err
		}
		return s.enqueue(r.ModelID, *r.SeqID, func(engines.TrainRun) (any, error) {
			path := tinker.Path{Run: r.ModelID, Kind: tinker.TrainingCheckpoint, Name: *r.Path}
			return tinker.SaveWeightsResponse{Path: path.String()}, nil
		})
	case "load_weights":
		r, err := tinker.Decode[tinker.LoadWeightsRequest](body)
		if err != nil {
			return nil, err
		}
		return s.enqueue(r.ModelID, *r.SeqID, func(engines.TrainRun) (any, error) {
			return tinker.LoadWeightsResponse{Path: r.Path, ModelID: r.ModelID}, nil
		})
	}
	r, err := tinker.Decode[tinker.SaveWeightsForSamplerRequest](body)
	if err != nil {
		return nil, err
	}
	return s.enqueue(r.ModelID, *r.SeqID, func(run engines.TrainRun) (any, error) {
		if !r.Ephemeral() {
			path := tinker.Path{Run: r.ModelID, Kind: tinker.SamplerCheckpoint, Name: *r.Path}
			return tinker.SaveWeightsForSamplerResponse{Path: path.String()}, nil
		}
		dir, err := os.MkdirTemp(s.dir, "adapter-*")
		if err != nil {
			return nil, err
		}
		if err := run.Export(context.Background(), dir); err != nil {
			return nil, err
		}
		id := fmt.Sprintf("sampler-%d", *r.SamplingSessionSeqID)
		s.samplers[id], err = s.pool.OpenSampler(context.Background(), dir)
		return tinker.SaveWeightsForSamplerResponse{SamplingSessionID: id}, err
	})
}

func (s *server) sample(body []byte) (any, error) {
	r, err := tinker.Decode[tinker.SampleRequest](body)
	if err != nil {
		return nil, err
	}
	sampler := s.samplers[r.SamplingSessionID]
	if sampler == nil {
		return nil, domain.Errorf(domain.NotFound, "no sampling session %s", r.SamplingSessionID)
	}
	id := fmt.Sprintf("%s/%d", r.SamplingSessionID, *r.SeqID)
	request, err := r.Sample("", uint64(*r.SeqID))
	if err != nil {
		return nil, err
	}
	samples, err := sampler.Sample(context.Background(), request)
	out := tinker.SampleResponseOf(&samples, r.TopKPromptLogprobs)
	if s.results[id] = &out; err != nil {
		s.results[id] = tinker.NewFailed(err)
	}
	return tinker.Submitted{RequestID: id}, nil
}

func (s *server) future(body []byte) (any, error) {
	s.polls++
	r, err := tinker.Decode[tinker.FutureRequest](body)
	if err != nil {
		return nil, err
	}
	result, known := s.results[r.RequestID]
	switch {
	case !known:
		return nil, domain.Errorf(domain.NotFound, "no request %s", r.RequestID)
	case result == nil:
		return tinker.NewTryAgain(r.RequestID, tinker.QueuePausedCapacity, "waits for an earlier operation"), nil
	}
	return result, nil
}

// A countingPool has runs whose results are numbers that tests can predict.
type countingPool struct{}

func (countingPool) CreateRun(_ context.Context, config engines.TrainRunConfig) (engines.TrainRun, error) {
	return &countingRun{config: config}, nil
}

func (countingPool) OpenSampler(context.Context, string) (engines.TrainSampler, error) {
	return echo{}, nil
}

// A countingRun counts passes and steps. The loss of a pass is the number of its tokens.
type countingRun struct {
	engines.TrainRun
	config         engines.TrainRunConfig
	passes, steps  int
	pending, total int // tokens of passes since the last step, and of all
}

func (r *countingRun) Forward(_ context.Context, pass engines.TrainPass) (engines.TrainPassResult, error) {
	tokens := 0
	result := engines.TrainPassResult{}
	for _, d := range pass.Data {
		tokens += len(d.Tokens)
		result.Outputs = append(result.Outputs, engines.TrainOutput{Logprobs: make([]float32, len(d.Targets))})
		if len(d.Targets) > 0 && d.Targets[0] == 404 {
			return result, domain.Errorf(domain.InvalidArgument, "data[0].target_tokens: token 0 must be 0 to 255, is 404")
		}
	}
	result.Metrics = map[string]float64{engines.MetricLossSum: float64(tokens)}
	return result, nil
}

func (r *countingRun) ForwardBackward(ctx context.Context, pass engines.TrainPass) (engines.TrainPassResult, error) {
	result, err := r.Forward(ctx, pass)
	r.passes++
	r.pending += int(result.Metrics[engines.MetricLossSum])
	return result, err
}

func (r *countingRun) Step(context.Context, engines.AdamParams) (engines.TrainStepResult, error) {
	r.steps++
	norm := float64(r.pending)
	r.total, r.pending = r.total+r.pending, 0
	return engines.TrainStepResult{Step: r.steps, GradNorm: norm}, nil
}

func (r *countingRun) Export(context.Context, string) error { return nil }

// echo samples the prompt again.
type echo struct{}

func (echo) Sample(_ context.Context, r engines.TrainSampleRequest) (engines.TrainSamples, error) {
	var out engines.TrainSamples
	for range r.N {
		out.Sequences = append(out.Sequences, engines.TrainSequence{Tokens: r.Prompt,
			Logprobs: make([]float32, len(r.Prompt)), Stopped: true})
	}
	return out, nil
}

func (echo) Close() error { return nil }

// count returns a number that the server changes.
func (s *server) count(number *int) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *number
}

// setFault changes the faults.
func (s *server) setFault(fault func(path string, n int) (status int, lost bool)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

// open returns a session with the server.
func open(t *testing.T, s *server) *client.Session {
	t.Helper()
	c, err := client.New(client.Options{URL: "https://job.example.com", APIKey: "key",
		HTTPClient: &http.Client{Transport: s}})
	if err != nil {
		t.Fatal(err)
	}
	session, err := c.OpenSession(context.Background(), client.SessionOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(session.Close)
	return session
}

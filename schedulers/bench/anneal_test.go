package bench

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nkeys"
	"github.com/stretchr/testify/require"

	"anneal/api"
	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines/simulated"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
	"anneal/schedulers"
	"anneal/workers/agent"
	"anneal/workers/coordinator"
)

const (
	agents   = 4
	pepper   = "0123456789abcdef0123456789abcdef"
	jobPaths = "accounts/acme/supervisedFineTuningJobs"
)

// annealServer is a control plane on a durable log, with agents that simulate the training.
type annealServer struct {
	*waiters
	t      *testing.T
	ctx    context.Context
	log    eventlog.Log
	world  *projections.World
	blobs  *blobs.Store
	url    string
	key    string
	client *http.Client
}

func newAnneal(t *testing.T) *annealServer {
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	s := &annealServer{waiters: newWaiters(), t: t, ctx: ctx, world: projections.NewWorld(),
		client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 64}}}
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
	nats, err := natsserver.Start(natsserver.Options{Dir: t.TempDir(), Listen: "127.0.0.1:0",
		VerifyNode: func(context.Context, natsserver.NodeLogin) error { return nil }})
	require.NoError(t, err)
	t.Cleanup(nats.Close)
	s.log = nats.Log()
	go func() { _ = s.world.Run(ctx, s.log) }()
	web := httptest.NewUnstartedServer(nil)
	s.blobs, err = blobs.Open(ctx, blobs.Options{Dir: t.TempDir(), BaseURL: "http://" +
		web.Listener.Addr().String() + "/blobs", Key: []byte(pepper)})
	require.NoError(t, err)
	handler := api.New(api.Options{Log: s.log, World: s.world, Blobs: s.blobs, Pepper: []byte(pepper), Logger: logger})
	mux := http.NewServeMux()
	mux.Handle("/blobs/", s.blobs.Handler())
	mux.Handle("/", handler)
	web.Config.Handler = mux
	web.Start()
	t.Cleanup(func() { web.Close(); handler.Close() })
	s.url = web.URL + "/v1/"
	s.prepare()

	agentSide := coordinator.New(coordinator.Options{Log: s.log, World: s.world, Blobs: s.blobs, Conn: nats.Coordinator(),
		Secret: []byte(pepper), Logger: logger})
	go func() { _ = agentSide.Run(ctx) }()
	for _, scheduler := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Nodes{},
		schedulers.Allocations{}, schedulers.Expiry{}, schedulers.Drain{}} {
		go func() { _ = schedulers.Run(ctx, s.log, s.world, scheduler, logger) }()
	}
	for i := range agents {
		key, err := nkeys.CreateUser()
		require.NoError(t, err)
		public, _ := key.PublicKey()
		node := fmt.Sprintf("n%d", i)
		s.do(domain.Intend(domain.Nodes, domain.NewName(domain.System, "nodes", node),
			domain.Command[domain.Node](domain.EnrollNode{PublicKey: public, JoinToken: node})))
		a, err := agent.New(agent.Options{Node: node, Key: key, URL: nats.URL(), Dir: t.TempDir(), Cores: 1024,
			Capacity: map[string]int{}, Engine: simulated.New(simulated.Options{Steps: 1}), Log: logger})
		require.NoError(t, err)
		go func() { _ = a.Run(ctx) }()
	}
	go s.follow()
	require.Eventually(t, func() bool {
		ready := 0
		for row := range s.world.View().Nodes.All() {
			if row.State.State == domain.NodeReady {
				ready++
			}
		}
		return ready == agents
	}, time.Minute, 10*time.Millisecond)
	return s
}

func (s *annealServer) do(intents ...domain.Intent) {
	for _, intent := range intents {
		change, err := eventlog.Do(s.ctx, s.log, s.world, eventlog.Request{Time: time.Now(), Actor: "bench"}, intent)
		require.NoError(s.t, err)
		require.NoError(s.t, s.world.WaitFor(s.ctx, change.Position()))
	}
}

// prepare creates an account, a model and a dataset of four rows.
func (s *annealServer) prepare() {
	key, err := request.MintKey([]byte(pepper), "accounts/acme/apiKeys/k")
	require.NoError(s.t, err)
	s.key = key.Text
	put := func(name, text string) int64 {
		n, err := s.blobs.Put(s.ctx, name, strings.NewReader(text))
		require.NoError(s.t, err)
		return n
	}
	model := domain.Files{Prefix: "models/acme/base/", Sizes: map[string]int64{
		"config.json":       put("models/acme/base/config.json", `{"model_type":"llama"}`),
		"model.safetensors": put("models/acme/base/model.safetensors", "\x02\x00\x00\x00\x00\x00\x00\x00{}")}}
	rows := domain.Files{Prefix: "datasets/acme/rows/1/", Sizes: map[string]int64{"rows.jsonl": put(
		"datasets/acme/rows/1/rows.jsonl", strings.Repeat(
			`{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"b"}]}`+"\n", 4))}}
	dataset := domain.Name("accounts/acme/datasets/rows")
	s.do(domain.Intend(domain.Accounts, "accounts/acme", domain.Command[domain.Account](domain.CreateAccount{})),
		domain.Intend(domain.APIKeys, "accounts/acme/apiKeys/k", domain.Command[domain.APIKey](domain.CreateAPIKey{
			APIKeySpec: domain.APIKeySpec{Role: domain.RoleAdmin}, Hash: key.Hash})),
		domain.Intend(domain.Models, "accounts/acme/models/base", domain.Command[domain.Model](domain.RegisterModel{
			ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, Files: model,
			ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 1000, ContextLength: 512}})),
		domain.Intend(domain.Datasets, dataset, domain.Command[domain.Dataset](domain.CreateDataset{})),
		domain.Intend(domain.Datasets, dataset, domain.Command[domain.Dataset](domain.UploadDataset{Upload: 1,
			Files: rows})),
		domain.Intend(domain.Datasets, dataset, domain.Command[domain.Dataset](domain.AcceptDataset{Upload: 1,
			DatasetStats: domain.DatasetStats{Format: domain.FormatChat, ExampleCount: 4}})))
}

// follow completes the waiters of jobs in the order of the log.
func (s *annealServer) follow() {
	for e, err := range s.log.Follow(s.ctx, "events.acme.supervisedFineTuningJobs.>", 0) {
		if err != nil {
			return
		}
		if e.Type == "supervisedFineTuningJob.failed.v1" {
			s.t.Errorf("%s failed: %s", e.Name, e.Data)
		}
		if e.Type == "supervisedFineTuningJob.completed.v1" {
			number, _ := strconv.ParseInt(strings.TrimPrefix(e.Name.ID(), "j"), 10, 64)
			s.complete(number)
		}
	}
}

func (s *annealServer) create(number int64) error {
	body := `{"dataset": "accounts/acme/datasets/rows", "baseModel": "accounts/acme/models/base"}`
	r, err := http.NewRequest(http.MethodPost, fmt.Sprintf("%s%s?supervisedFineTuningJobId=j%d", s.url, jobPaths, number),
		bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	r.Header.Set("Authorization", "Bearer "+s.key)
	r.Header.Set("Content-Type", "application/json")
	reply, err := s.client.Do(r)
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	text, err := io.ReadAll(reply.Body)
	if err == nil && reply.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", reply.Status, text)
	}
	return err
}

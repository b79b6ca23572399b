package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
	"anneal/domain/rows"
	"anneal/eventlog"
	"anneal/eventlog/archive"
	"anneal/eventlog/audit"
	"anneal/eventlog/idempotency"
	sealed "anneal/eventlog/secrets"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/schedulers"
)

// A harness is a complete server on a loopback port: the log in memory, a world that follows it,
// files in a temporary directory, and replicas that respond immediately.
type harness struct {
	testing.TB
	server   *Server
	world    *projections.World
	log      *eventlog.Memory
	store    *blobs.Store
	vault    *sealed.Vault
	answers  *idempotency.Store
	audit    *audit.Recorder
	replicas *fakeReplicas
	url      string
	keys     map[string]string // text of the API key by alias
	actor    string            // actor of the events that do records
	modify   func(*Options)    // changes the options of the server; may be nil
	logged   *testutil.Buffer
	clock    *clock
	plan     *atomic.Pointer[faults.Plan]  // injects faults into the blob store
	before   *atomic.Pointer[func(string)] // called before each change of the blob store with its name; may be nil
}

var pepper = []byte("a pepper for tests only, 32 bytes")

// patience is the timeout of waits in tests. A wait in a test that passes is much shorter.
const patience = time.Minute

// epoch is the time at which every test begins.
var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newHarness(t testing.TB, limits request.Limits) *harness {
	s := startHarness(t, epoch, limits, nil)
	s.createAccounts()
	return s
}

// servingHarness returns a harness with the deployment d1 and n ready replicas.
func servingHarness(t testing.TB, n int) *harness {
	s := newHarness(t, request.Limits{})
	s.deploy("d1", n)
	return s
}

// startHarness returns a harness without accounts whose clock begins at a given time. modify
// changes the options of the server; it may be nil.
func startHarness(t testing.TB, begin time.Time, limits request.Limits, modify func(*Options)) *harness {
	s := &harness{TB: t, actor: "test", modify: modify, world: projections.NewWorld(), log: eventlog.NewMemory(),
		vault:   sealed.NewMemoryVault(),
		answers: idempotency.NewMemory(), replicas: &fakeReplicas{},
		plan: new(atomic.Pointer[faults.Plan]), before: new(atomic.Pointer[func(string)]), keys: map[string]string{},
		logged: &testutil.Buffer{}, clock: &clock{now: begin}}
	s.world.SetClock(func() time.Time { return begin })
	s.world.Live().ListenFrom(begin)
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	var handler http.Handler
	web := httptest.NewUnstartedServer(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	s.url = "http://" + web.Listener.Addr().String()
	var err error
	s.store, err = blobs.Open(ctx,
		blobs.Options{Dir: t.TempDir(), BaseURL: s.url + "/blobs", Key: pepper, Intercept: s.intercept})
	require.NoError(t, err)
	require.NoError(t, s.world.Archive(newArchive(t)))
	following.Go(func() { _ = s.world.Run(ctx, s.log) })
	following.Go(func() { s.validateDatasets(ctx) })
	s.audit = audit.NewRecorder(audit.Options{Store: &audit.Memory{}, ID: "cp-1", Addresses: true,
		Now: time.Now, Logger: slog.New(slog.DiscardHandler)})
	following.Go(func() { _ = s.audit.Run(ctx) })
	s.server = New(s.options(limits))
	handler = s.server
	web.Start()
	t.Cleanup(func() {
		s.server.Close()
		web.Close()
		stop()
		following.Wait()
		_ = s.store.Close()
	})
	return s
}

// newArchive returns an archive in memory.
func newArchive(t testing.TB) *archive.Archive {
	a := archive.NewMemory()
	t.Cleanup(func() { _ = a.Close() })
	return a
}

func (s *harness) options(limits request.Limits) Options {
	o := Options{Address: exampleServer, ReaderURL: "nats://events.example.com:4222", Log: s.log,
		World: s.world, Blobs: s.store,
		Sealer: sealed.ObservedVault{Vault: s.vault}, Proofs: fakeProofs{s}, Idempotency: s.answers, Audit: s.audit,
		Replicas: s.replicas,
		Scorer:   exactScorer{}, Pepper: pepper,
		Prices: domain.Prices{CurrencyCode: "EUR", Adapter: 400_000_000, AllParameters: 1_200_000_000},
		Now:    s.clock.tick, Limits: limits, Queue: &schedulers.Places{}, Backups: &fakeBackups{}, Rebuilds: &fakeRebuilds{},
		Logger: slog.New(slog.NewTextHandler(s.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))}
	if s.modify != nil {
		s.modify(&o)
	}
	return o
}

// another returns a copy of the harness with another server of the same installation: it has its
// own world, which follows the same log. change sets its options.
func (s *harness) another(change func(*Options)) *harness { return s.following(s.log, change) }

// following is like another for a server whose world follows log.
func (s *harness) following(log eventlog.Log, change func(*Options)) *harness {
	s.Helper()
	other := *s
	other.world = projections.NewWorld()
	require.NoError(s, other.world.Archive(newArchive(s)))
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { _ = other.world.Run(ctx, log) })
	options := s.options(s.server.Limits)
	options.World = other.world
	change(&options)
	other.server = New(options)
	web := httptest.NewServer(other.server)
	other.url = web.URL
	s.Cleanup(func() {
		other.server.Close()
		web.Close()
		stop()
		following.Wait()
	})
	require.NoError(s, other.world.WaitFor(s.Context(), s.last().Position))
	return &other
}

// validateDatasets validates the rows of every upload, like the platform's task.
func (s *harness) validateDatasets(ctx context.Context) {
	for e, err := range s.log.Follow(ctx, "events.*.datasets.*", 0) {
		if err != nil || e.Type != "dataset.uploaded.v1" {
			continue
		}
		var upload domain.DatasetUploaded
		if !s.continues(ctx, json.Unmarshal(e.Data, &upload)) || s.world.WaitFor(ctx, e.Position) != nil {
			return
		}
		row, ok := s.world.View().Datasets.Get(e.Name)
		if !ok {
			continue
		}
		checker := rows.NewChecker(row.State.Format)
		for name := range upload.Files.Sizes {
			file, err := s.store.Get(ctx, upload.Files.Prefix+name)
			if !s.continues(ctx, err) || !s.continues(ctx, errors.Join(checker.Read(name, file), file.Close())) {
				return
			}
		}
		facts, faults, more := checker.Result()
		var result domain.Command[domain.Dataset] = domain.AcceptDataset{Upload: upload.Upload, DatasetStats: facts}
		if len(faults) > 0 {
			f := rows.InvalidRows(faults, more)
			result = domain.RejectDataset{Upload: upload.Upload, Status: domain.StatusOf(f), Violations: f.Violations}
		}
		if !s.concludes(ctx, domain.Intend(domain.Datasets, e.Name, result)) {
			return
		}
	}
}

// continues reports whether a background task of the harness continues after err. It fails the test
// if err is not nil, unless ctx is done.
func (s *harness) continues(ctx context.Context, err error) bool {
	return err == nil || ctx.Err() == nil && assert.NoError(s, err)
}

// concludes records the result of a validation, and reports whether the background task continues.
// It ignores the error of a resource that was deleted during the validation.
func (s *harness) concludes(ctx context.Context, result domain.Intent) bool {
	err := s.carryOut(ctx, result)
	return domain.CodeOf(err) == domain.NotFound || s.continues(ctx, err)
}

// createAccounts creates the accounts, the API keys of the accounts and of the operator, a public
// model and a private model.
func (s *harness) createAccounts() {
	for _, account := range []string{"acme", "other", "default"} {
		s.do(domain.Intend(domain.Accounts, domain.NewName(account, "accounts", account), domain.CreateAccount{
			AccountSpec: domain.AccountSpec{Email: account + "@example.com", DisplayName: strings.ToUpper(account)}}))
	}
	keys := map[string]struct{ account, role string }{
		"admin": {"acme", domain.RoleAdmin}, "user": {"acme", domain.RoleUser}, "inference": {"acme", domain.RoleInference},
		"other": {"other", domain.RoleAdmin}, "operator": {domain.System, domain.RoleAdmin},
		"default": {"default", domain.RoleAdmin},
	}
	for _, alias := range wire.SortedKeys(keys) {
		s.mint(alias, keys[alias].account, keys[alias].role, nil)
	}
	s.do(register("accounts/default/models/anneal-base", true))
	s.do(register("accounts/other/models/private", false))
}

func register(name domain.Name, public bool) domain.Intent {
	return domain.Intend(domain.Models, name, domain.RegisterModel{
		ModelSpec:     domain.ModelSpec{DisplayName: name.ID(), Kind: domain.BaseModel, Public: public},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 840_000, ContextLength: 512},
		Files: domain.Files{Prefix: "models/" + name.Account() + "/" + name.ID() + "/",
			Sizes: map[string]int64{"model.safetensors": 42}}})
}

// registerSpeech returns the intent that registers a speech model.
func registerSpeech(name domain.Name) domain.Intent {
	return domain.Intend(domain.Models, name, domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: name.ID(), Kind: domain.SpeechModel,
			Speech: &domain.SpeechSettings{Format: domain.SpeechSimulated}},
		Files: domain.Files{Prefix: "models/" + name.Account() + "/" + name.ID() + "/",
			Sizes: map[string]int64{"model.bin": 42}}})
}

// key returns the API key of an alias. It mints the key of the reader at the first use, because few
// tests use that key.
func (s *harness) key(alias string) string {
	if _, minted := s.keys[alias]; alias == domain.RoleReader && !minted {
		s.mint(alias, "acme", domain.RoleReader, nil)
	}
	return s.keys[alias]
}

func (s *harness) mint(alias, account, role string, expire *time.Time) {
	name := domain.NewName(account, domain.APIKeys.Collection, alias)
	key, err := request.MintKey(pepper, name)
	require.NoError(s, err)
	s.do(domain.Intend(domain.APIKeys, name, domain.CreateAPIKey{APIKeySpec: domain.APIKeySpec{DisplayName: alias,
		Role: role, ExpireTime: expire}, Hash: key.Hash, Prefix: key.Prefix, CreatedBy: "test"}))
	s.keys[alias] = key.Text
}

// do records intents, as schedulers and workers would.
func (s *harness) do(intents ...domain.Intent) {
	s.Helper()
	require.NoError(s, s.carryOut(s.Context(), intents...))
}

func (s *harness) carryOut(ctx context.Context, intents ...domain.Intent) error {
	for _, intent := range intents {
		change, err := eventlog.Do(ctx, s.log, s.world, eventlog.Request{Time: s.clock.tick(), Actor: s.actor}, intent)
		if err == nil {
			err = s.world.WaitFor(ctx, change.Position())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *harness) deployment(name domain.Name, command domain.Command[domain.Deployment]) {
	s.Helper()
	s.do(domain.Intend(domain.Deployments, name, command))
}

// serve adds a ready replica to a deployment and makes the deployment READY.
func (s *harness) serve(name domain.Name) {
	s.Helper()
	row, ok := s.world.View().Deployments.Get(name)
	require.True(s, ok)
	id := row.State.NextReplica()
	s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: row.State.Generation})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
	s.deployment(name, domain.MarkDeploymentReady{Generation: row.State.Generation})
}

// deploy creates a deployment of the public model with n ready replicas.
func (s *harness) deploy(id string, n int, edit ...func(*domain.DeploymentSpec)) domain.Name {
	s.Helper()
	name, limit := domain.NewName("acme", domain.Deployments.Collection, id), max(n, 1)
	spec := domain.DeploymentSpec{BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: n,
		MaxReplicaCount: &limit}
	for _, f := range edit {
		f(&spec)
	}
	s.deployment(name, domain.CreateDeployment{DeploymentSpec: spec, Operator: true})
	for range n {
		id := mustRow(s, name).NextReplica()
		s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: 1})
		s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
	}
	s.deployment(name, domain.MarkDeploymentReady{Generation: 1})
	return name
}

func mustRow(s *harness, name domain.Name) domain.Deployment {
	row, ok := s.world.View().Deployments.Get(name)
	require.True(s, ok)
	return row.State
}

// A response is a response of the server with its whole body.
type response struct {
	status int
	header http.Header
	body   []byte
}

func (r response) json(t testing.TB) map[string]any {
	t.Helper()
	var tree map[string]any
	require.NoError(t, json.Unmarshal(r.body, &tree), "%s", r.body)
	return tree
}

// request returns a request with the API key of an alias, or without a key when alias is "".
func (s *harness) request(method, path, alias string, body io.Reader) *http.Request {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), method, s.url+path, body)
	require.NoError(s, err)
	if alias != "" {
		key := s.key(alias)
		require.Contains(s, s.keys, alias)
		r.Header.Set("Authorization", "Bearer "+key)
	}
	return r
}

func (s *harness) send(r *http.Request) response {
	s.Helper()
	var sent []byte
	if r.Body != nil && !strings.HasPrefix(r.Header.Get("Content-Type"), "multipart/") {
		sent = testutil.ReadAll(s, r.Body)
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	received, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer received.Body.Close()
	body := testutil.ReadAll(s, received.Body)
	a := response{received.StatusCode, received.Header, body}
	s.validate(r, sent, a)
	s.requireNoNode(r, a)
	for name := range a.header {
		if strings.HasPrefix(name, "Anneal-") {
			require.Contains(s, s.server.cors.exposed, strings.ToLower(name), "scripts of other origins can read the header")
		}
	}
	return a
}

func (s *harness) call(method, path, alias, body string) response {
	s.Helper()
	return s.send(s.request(method, path, alias, strings.NewReader(body)))
}

// putFile stores a file of the file store, and returns its size.
func (s *harness) putFile(key, content string) int64 {
	s.Helper()
	size, err := s.store.Put(s.Context(), key, strings.NewReader(content))
	require.NoError(s, err)
	return size
}

// last returns the checkpoint of the last event of the log.
func (s *harness) last() eventlog.Checkpoint {
	s.Helper()
	last, err := s.log.Last(s.Context())
	require.NoError(s, err)
	return last
}

// upload sends a file as a field of a form.
func (s *harness) upload(path, alias, field, name string, content io.Reader) response {
	s.Helper()
	return s.send(s.form(path, alias, field, name, content))
}

// form returns a request with a form whose first field is a file. others are the further fields,
// each as NAME=VALUE.
func (s *harness) form(path, alias, field, name string, content io.Reader, others ...string) *http.Request {
	s.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	part, err := w.CreateFormFile(field, name)
	require.NoError(s, err)
	_, err = io.Copy(part, content)
	require.NoError(s, err)
	for _, other := range others {
		name, value, _ := strings.Cut(other, "=")
		require.NoError(s, w.WriteField(name, value))
	}
	require.NoError(s, w.Close())
	r := s.request(http.MethodPost, path, alias, &form)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return r
}

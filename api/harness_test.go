package api

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"reflect"
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
	"anneal/engines"
	"anneal/eventlog"
	"anneal/eventlog/idempotency"
	sealed "anneal/eventlog/secrets"
	"anneal/projections"
)

// A stage is a whole server on a loopback port: the log in memory, a world
// that follows it, files in a temporary folder, and an engine that answers at
// once.
type stage struct {
	testing.TB
	server   *Server
	world    *projections.World
	log      *eventlog.Memory
	store    *blobs.Store
	vault    *sealed.Vault
	answers  *idempotency.Store
	replicas *chorus
	url      string
	keys     map[string]string  // by alias: the key's text
	examples map[string]example // of the document, when they are being collected
	logged   *safeBuffer
	clock    *clock
	plan     *atomic.Pointer[faults.Plan] // of the store's faults
}

var pepper = []byte("a pepper for tests only, 32 bytes")

// patience bounds the waits of tests; none of them needs it.
const patience = time.Minute

// epoch is when every test begins.
var epoch = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func newStage(t testing.TB, limits Limits) *stage {
	s := &stage{TB: t, world: projections.NewWorld(), log: eventlog.NewMemory(), vault: sealed.NewMemoryVault(), answers: idempotency.NewMemory(), replicas: &chorus{},
		plan: new(atomic.Pointer[faults.Plan]), keys: map[string]string{}, logged: &safeBuffer{}, clock: &clock{now: epoch}}
	s.world.Live().Boot(epoch)
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	var handler http.Handler
	web := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { handler.ServeHTTP(w, r) }))
	s.url = "http://" + web.Listener.Addr().String()
	var err error
	s.store, err = blobs.Open(ctx, blobs.Options{Dir: t.TempDir(), BaseURL: s.url + "/blobs", Key: pepper, Intercept: s.intercept})
	require.NoError(t, err)
	following.Go(func() { _ = s.world.Run(ctx, s.log) })
	following.Go(func() { s.judge(ctx) })
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
	s.furnish()
	return s
}

func (s *stage) options(limits Limits) Options {
	return Options{ReaderURL: "nats://events.example.com:4222", Log: s.log, World: s.world, Blobs: s.store, Sealer: s.vault, Answers: s.answers, Replicas: s.replicas, Scorer: exactScorer{}, Pepper: pepper,
		Prices: domain.Prices{CurrencyCode: "EUR", Adapter: 400_000_000, AllParameters: 1_200_000_000},
		Now:    s.clock.tick, Limits: limits, Logger: slog.New(slog.NewTextHandler(s.logged, &slog.HandlerOptions{Level: slog.LevelDebug}))}
}

// twin is the stage as seen through another server: with a world of its own
// that follows the same log, and whatever else change makes different.
func (s *stage) twin(change func(*Options)) *stage {
	other := *s
	other.world = projections.NewWorld()
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() { _ = other.world.Run(ctx, s.log) })
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
	last, err := s.log.Last(s.Context())
	require.NoError(s, err)
	require.NoError(s, other.world.WaitFor(s.Context(), last.Position))
	return &other
}

// judge checks the rows of every upload, as a task of the platform does.
func (s *stage) judge(ctx context.Context) {
	for e, err := range s.log.Follow(ctx, "events.*.datasets.*", 0) {
		if err != nil || e.Type != "dataset.uploaded.v1" {
			continue
		}
		var upload domain.DatasetUploaded
		if !s.fine(ctx, json.Unmarshal(e.Data, &upload)) || s.world.WaitFor(ctx, e.Position) != nil {
			return
		}
		row, ok := s.world.View().Datasets.Get(e.Name)
		if !ok {
			continue
		}
		checker := rows.NewChecker(row.State.Format)
		for name := range upload.Files.Sizes {
			file, err := s.store.Get(ctx, upload.Files.Folder+name)
			if !s.fine(ctx, err) || !s.fine(ctx, errors.Join(checker.Read(name, file), file.Close())) {
				return
			}
		}
		facts, faults, more := checker.Result()
		var verdict domain.Command[domain.Dataset] = domain.AcceptDataset{Upload: upload.Upload, DatasetFacts: facts}
		if len(faults) > 0 {
			f := rows.Refusal(faults, more)
			verdict = domain.RejectDataset{Upload: upload.Upload, Status: domain.StatusOf(f), Violations: f.Violations}
		}
		if !s.fine(ctx, s.carryOut(ctx, domain.Intend(domain.Datasets, e.Name, verdict))) {
			return
		}
	}
}

// fine tells whether what works beside a test until ctx is done goes on. A test
// may end in the middle of its work: who asked may see what it has done first.
func (s *stage) fine(ctx context.Context, err error) bool {
	return err == nil || ctx.Err() == nil && assert.NoError(s, err)
}

// furnish makes two accounts, their keys, the operator's, and a public model.
func (s *stage) furnish() {
	for _, account := range []string{"acme", "other", "default"} {
		s.do(domain.Intend(domain.Accounts, domain.NewName(account, "accounts", account), domain.Command[domain.Account](
			domain.CreateAccount{AccountSpec: domain.AccountSpec{Email: account + "@example.com", DisplayName: strings.ToUpper(account)}})))
	}
	keys := map[string]struct{ account, role string }{
		"admin": {"acme", domain.RoleAdmin}, "user": {"acme", domain.RoleUser}, "inference": {"acme", domain.RoleInference},
		"other": {"other", domain.RoleAdmin}, "operator": {domain.System, domain.RoleAdmin}, "default": {"default", domain.RoleAdmin},
	}
	for _, alias := range wire.SortedKeys(keys) {
		s.mint(alias, keys[alias].account, keys[alias].role, nil)
	}
	s.do(register("accounts/default/models/anneal-base", true))
	s.do(register("accounts/other/models/private", false))
}

func register(name domain.Name, public bool) domain.Intent {
	return domain.Intend(domain.Models, name, domain.Command[domain.Model](domain.RegisterModel{
		ModelSpec:  domain.ModelSpec{DisplayName: name.ID(), Kind: domain.BaseModel, Public: public},
		ModelFacts: domain.ModelFacts{ModelType: "llama", ParameterCount: 840_000, ContextLength: 512},
		Files:      domain.Files{Folder: "models/" + name.Account() + "/" + name.ID() + "/", Sizes: map[string]int64{"model.safetensors": 42}}}))
}

// registerSpeech is register of a model that transcribes.
func registerSpeech(name domain.Name) domain.Intent {
	return domain.Intend(domain.Models, name, domain.Command[domain.Model](domain.RegisterModel{
		ModelSpec: domain.ModelSpec{DisplayName: name.ID(), Kind: domain.SpeechModel, Speech: &domain.SpeechSettings{Format: domain.SpeechSimulated}},
		Files:     domain.Files{Folder: "models/" + name.Account() + "/" + name.ID() + "/", Sizes: map[string]int64{"model.bin": 42}}}))
}

// key is the key of an alias. That of a reader is minted when a test first needs
// it, which few do.
func (s *stage) key(alias string) string {
	if _, minted := s.keys[alias]; alias == domain.RoleReader && !minted {
		s.mint(alias, "acme", domain.RoleReader, nil)
	}
	return s.keys[alias]
}

func (s *stage) mint(alias, account, role string, expire *time.Time) {
	name := domain.NewName(account, domain.APIKeys.Collection, alias)
	key, err := request.MintKey(pepper, name)
	require.NoError(s, err)
	s.do(domain.Intend(domain.APIKeys, name, domain.Command[domain.APIKey](domain.CreateAPIKey{
		APIKeySpec: domain.APIKeySpec{DisplayName: alias, Role: role, ExpireTime: expire}, Hash: key.Hash, Prefix: key.Prefix, CreatedBy: "test"})))
	s.keys[alias] = key.Text
}

// do is what the rest of the platform does to the world.
func (s *stage) do(intents ...domain.Intent) {
	s.Helper()
	require.NoError(s, s.carryOut(s.Context(), intents...))
}

func (s *stage) carryOut(ctx context.Context, intents ...domain.Intent) error {
	for _, intent := range intents {
		change, err := eventlog.Do(ctx, s.log, s.world, eventlog.Request{Time: s.clock.tick(), Actor: "test"}, intent)
		if err == nil {
			err = s.world.WaitFor(ctx, change.Position())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *stage) deployment(name domain.Name, command domain.Command[domain.Deployment]) {
	s.Helper()
	s.do(domain.Intend(domain.Deployments, name, command))
}

// serve gives a deployment one more ready replica and lets it settle.
func (s *stage) serve(name domain.Name) {
	s.Helper()
	row, ok := s.world.View().Deployments.Get(name)
	require.True(s, ok)
	id := row.State.NextReplica()
	s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: row.State.Generation})
	s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
	s.deployment(name, domain.SettleDeployment{Generation: row.State.Generation})
}

// deploy makes a deployment of the public model with n ready replicas.
func (s *stage) deploy(id string, n int, edit ...func(*domain.DeploymentSpec)) domain.Name {
	s.Helper()
	name, most := domain.NewName("acme", domain.Deployments.Collection, id), max(n, 1)
	spec := domain.DeploymentSpec{BaseModel: "accounts/default/models/anneal-base", MinReplicaCount: n, MaxReplicaCount: &most}
	for _, f := range edit {
		f(&spec)
	}
	s.deployment(name, domain.CreateDeployment{DeploymentSpec: spec, Operator: true})
	for range n {
		id := mustRow(s, name).NextReplica()
		s.deployment(name, domain.PlaceReplica{ID: id, Node: "accounts/system/nodes/n1", Generation: 1})
		s.deployment(name, domain.AdvanceReplica{ID: id, State: domain.ReplicaReady, Node: "accounts/system/nodes/n1"})
	}
	s.deployment(name, domain.SettleDeployment{Generation: 1})
	return name
}

func mustRow(s *stage, name domain.Name) domain.Deployment {
	row, ok := s.world.View().Deployments.Get(name)
	require.True(s, ok)
	return row.State
}

// An answer is a response, read to its end.
type answer struct {
	status int
	header http.Header
	body   []byte
}

func (a answer) json(t testing.TB) map[string]any {
	t.Helper()
	var tree map[string]any
	require.NoError(t, json.Unmarshal(a.body, &tree), "%s", a.body)
	return tree
}

// request makes a request with the key of an alias, or with none.
func (s *stage) request(method, path, alias string, body io.Reader) *http.Request {
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

func (s *stage) send(r *http.Request) answer {
	s.Helper()
	var sent []byte
	if r.Body != nil && r.Header.Get("Content-Type") == "" { // not a form
		var err error
		sent, err = io.ReadAll(r.Body)
		require.NoError(s, err)
		r.Body = io.NopCloser(bytes.NewReader(sent))
	}
	response, err := http.DefaultClient.Do(r)
	require.NoError(s, err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	require.NoError(s, err)
	a := answer{response.StatusCode, response.Header, body}
	s.hold(r, sent, a)
	return a
}

func (s *stage) call(method, path, alias, body string) answer {
	s.Helper()
	return s.send(s.request(method, path, alias, strings.NewReader(body)))
}

// upload sends a file as a form's field.
func (s *stage) upload(path, alias, field, name string, content io.Reader) answer {
	s.Helper()
	return s.send(s.form(path, alias, field, name, content))
}

// form makes a request that carries a file as a form's field, before others
// that are each NAME=VALUE.
func (s *stage) form(path, alias, field, name string, content io.Reader, others ...string) *http.Request {
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

// A clock moves one second each time somebody looks at it.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) tick() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(time.Second)
	return c.now
}

func (c *clock) at(now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// A chorus answers as the replicas of a test want: sing, when it is set, or
// the prompt's words one by one.
type chorus struct {
	mu    sync.Mutex
	sing  func(ctx context.Context, replica domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error)
	hear  func(ctx context.Context, replica domain.Replica, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error)
	asked []string // replica IDs, in the order of asking
	reqs  []engines.CompletionRequest
	heard []engines.TranscriptionRequest
}

func (c *chorus) Complete(ctx context.Context, _ domain.Name, replica domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
	c.mu.Lock()
	c.asked, c.reqs = append(c.asked, replica.ID), append(c.reqs, req)
	sing := c.sing
	c.mu.Unlock()
	if sing != nil {
		return sing(ctx, replica, req, emit)
	}
	return echo(ctx, replica, req, emit)
}

func (c *chorus) Transcribe(ctx context.Context, _ domain.Name, replica domain.Replica, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	c.mu.Lock()
	c.asked, c.heard = append(c.asked, replica.ID), append(c.heard, req)
	hear := c.hear
	c.mu.Unlock()
	if hear != nil {
		return hear(ctx, replica, req, emit)
	}
	return readAloud(ctx, req, emit)
}

// readAloud hears the words of a recording that is a text: one each half
// second, and a segment for each line.
func readAloud(ctx context.Context, req engines.TranscriptionRequest, emit func(engines.TranscriptEvent) error) (engines.Transcript, error) {
	text, err := fetchText(ctx, req.Audio.URL)
	if err != nil {
		return engines.Transcript{}, err
	}
	heard := engines.Transcript{Language: "en"}
	for line := range strings.Lines(text) {
		segment := engines.Segment{Start: heard.Duration, Text: strings.TrimSpace(line), AvgLogprob: -0.25, CompressionRatio: 1.5}
		for _, word := range strings.Fields(line) {
			segment.Words = append(segment.Words, engines.Word{Text: word, Start: heard.Duration, End: heard.Duration + 0.4, Probability: 0.9})
			heard.Duration += 0.5
		}
		step := engines.TranscriptEvent{Seconds: heard.Duration}
		if segment.End = heard.Duration; len(segment.Words) > 0 {
			step.Segment = &segment
		}
		if err := emit(step); err != nil {
			return heard, err
		}
	}
	return heard, nil
}

// fetchText reads a recording as a worker does, who has its URL and no key.
func fetchText(ctx context.Context, url string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		return "", err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("the recording is answered with %d: %s", answer.StatusCode, text)
	}
	return string(text), err
}

func (c *chorus) asks() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]string(nil), c.asked...)
}

// echo says the words of the prompt, one token each, at most MaxTokens.
func echo(_ context.Context, _ domain.Replica, req engines.CompletionRequest, emit func(engines.Chunk) error) (engines.Usage, error) {
	words := strings.Fields(req.Prompt)
	if req.Chat != nil {
		for _, m := range req.Chat.Messages {
			words = append(words, strings.Fields(m.Role+" "+m.Content)...)
		}
	}
	for _, token := range req.PromptTokens {
		words = append(words, fmt.Sprint("t", token))
	}
	usage, finish := engines.Usage{PromptTokens: len(words)}, engines.FinishStop
	if req.Echo {
		if err := emit(engines.Chunk{Text: req.Prompt, Echoed: true}); err != nil {
			return usage, err
		}
	}
	for i, word := range words {
		if i == req.MaxTokens {
			finish = engines.FinishLength
			break
		}
		usage.CompletionTokens++
		if err := emit(engines.Chunk{Text: word + " "}); err != nil {
			return usage, err
		}
	}
	return usage, emit(engines.Chunk{Finish: finish})
}

func typeOf[T any]() reflect.Type { return reflect.TypeFor[T]() }

package agent

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/tokenizer"
	"anneal/workers/protocol"
)

// addonTrial is the size of a TestManyAddons.
type addonTrial struct {
	addons, replicas, slots int
	turns                   int           // number of turns of each kind of traffic
	turn                    time.Duration // length of a turn
	share                   float64       // which quantile of the times to the first token is compared
	slack                   time.Duration // added to its limit, because a short run has few requests
}

// TestManyAddons checks that requests for many more addons than fit into the engines are answered nearly
// as soon as requests for addons that are all loaded: the p99 of the time to the first token is at most
// three times as long. Four replicas of the embedded engine and the balancer of the gateway get both
// kinds of traffic by turns. The addons are drawn by Zipf's law with the exponent 1.
func TestManyAddons(t *testing.T) {
	trial := addonTrial{addons: 120, replicas: 4, slots: 8, turns: 3, turn: 800 * time.Millisecond,
		share: 0.9, slack: 50 * time.Millisecond}
	if os.Getenv("ANNEAL_ADDONS") == "full" {
		trial = addonTrial{addons: 1000, replicas: 4, slots: 64, turns: 6, turn: 5 * time.Second, share: 0.99}
	} else if testing.Short() {
		t.Skip("takes some seconds")
	}
	dir, adapters := trialModel(t)
	many, few := newTrialPool(t, trial.slots), newTrialPool(t, trial.slots)
	for i := range trial.replicas {
		model, err := serve.New(serve.Options{Parallelism: 1, CacheBytes: 64 << 20}).Load(t.Context(),
			engines.ModelFiles{Dir: dir})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, model.Close()) })
		many.add(fmt.Sprint("r", i), model)
		few.add(fmt.Sprint("r", i), model)
	}
	began := time.Now()
	many.load(adapters, trial.addons)
	few.load(adapters, trial.slots)
	t.Logf("loaded %d addons on each of %d replicas with %d slots in %s", trial.addons, trial.replicas, trial.slots,
		time.Since(began).Round(time.Millisecond))
	every := few.pace()
	zipf := newZipf(trial.addons)
	random := rand.New(rand.NewPCG(1, 2))
	many.run(trial.turn, every, func() string { return fmt.Sprint("many-", zipf.draw(random)) }) // fills the slots
	many.first, many.cold = nil, 0
	for range trial.turns {
		few.run(trial.turn, every, func() string { return fmt.Sprint("few-", random.IntN(trial.slots)) })
		many.run(trial.turn, every, func() string { return fmt.Sprint("many-", zipf.draw(random)) })
	}
	a, b := quantile(few.first, trial.share), quantile(many.first, trial.share)
	t.Logf("a request every %s; all resident: %d requests, p50 %s p%.0f %s; %d addons: %d requests, %.0f %% cold, p50 %s "+
		"and %s; ratio %.2f; a load takes %s", every, len(few.first), quantile(few.first, 0.5), 100*trial.share, a,
		trial.addons,
		len(many.first), 100*float64(many.cold)/float64(len(many.first)), quantile(many.first, 0.5), b,
		float64(b)/float64(a), many.replicas[0].averageLoad())
	require.LessOrEqual(t, b, 3*a+trial.slack)
}

// trialPrompt is the number of tokens of a prompt: long enough that a request takes longer than a load.
const trialPrompt = 400

// trialModel returns the directory of a small model, and those of some of its adapters.
func trialModel(t *testing.T) (dir string, adapters []string) {
	bos := 256
	w := llama.NewWeights(llama.Config{ModelType: "llama", HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 4,
		KVHeads: 4, HeadDim: 32, VocabSize: 260, MaxPositions: 512, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu",
		TorchDType: "float32", InitializerRange: 0.2, BOS: &bos, EOS: llama.TokenIDs{259}, TieWordEmbeddings: true})
	w.Initialize(11)
	dir = t.TempDir()
	require.NoError(t, w.Save(dir))
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	for seed := range uint64(4) {
		a := llama.NewAdapter(w.Config, 8, 16, []llama.Module{llama.Query, llama.Key, llama.Value, llama.Output, llama.Gate,
			llama.Up, llama.Down})
		a.Initialize(seed)
		a.BaseHash = w.Hash()
		adapter := t.TempDir()
		require.NoError(t, a.Save(adapter, 0))
		adapters = append(adapters, adapter)
	}
	return dir, adapters
}

// A trialPool sends requests to replicas as the gateway does.
type trialPool struct {
	t        *testing.T
	slots    int
	replicas []*residentAddons
	models   []engines.Model
	balancer *balance.Balancer
	start    time.Time

	mu         sync.Mutex
	candidates []balance.Candidate
	reported   []map[string]string // by replica: residency of the addons at its last report
	first      []time.Duration     // times to the first token
	cold       int                 // number of requests that were predicted to wait for a load
	turn       int                 // replica that reports next
	requests   sync.WaitGroup
	prompts    atomic.Int64 // makes each prompt another one, so that none is cached
}

func newTrialPool(t *testing.T, slots int) *trialPool {
	return &trialPool{t: t, slots: slots, balancer: balance.New(nil), start: time.Now()}
}

func (p *trialPool) add(id string, model engines.Model) {
	p.replicas = append(p.replicas, newResidentAddons(p.t.Context(), p.slots, time.Minute, func(id string, err error) {
		p.t.Errorf("%s: %v", id, err)
	}))
	p.models, p.reported = append(p.models, model), append(p.reported, nil)
	p.candidates = append(p.candidates, balance.Candidate{ID: id, Slots: model.Info().Slots})
}

// load assigns addons to all replicas.
func (p *trialPool) load(dirs []string, addons int) {
	kind := "many"
	if addons == p.slots {
		kind = "few"
	}
	for i, c := range p.replicas {
		loader := p.models[i].(engines.AddonLoader)
		for n := range addons {
			id := fmt.Sprint(kind, "-", n)
			if i == 0 || !c.register(loader, id, dirs[n%len(dirs)], func() {}) { // the first replica proves them
				require.NoError(p.t, c.add(p.t.Context(), loader, id, dirs[n%len(dirs)], func() {}))
			}
		}
	}
	for i := range p.replicas {
		p.report(i)
	}
}

func (p *trialPool) report(i int) {
	residency := p.replicas[i].residency()
	load, err := p.models[i].(engines.LoadReporter).Load(p.t.Context())
	require.NoError(p.t, err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reported[i] = residency
	p.candidates[i].Report = balance.Report{PendingTokens: load.PendingTokens, CacheBlocks: load.CacheTokens / 512}
	p.candidates[i].ReportTime = time.Since(p.start)
}

// send sends one request to the replica that the balancer chooses.
func (p *trialPool) send(addon string) {
	at := time.Now()
	now := at.Sub(p.start)
	prompt := balance.Prompt{Tokens: trialPrompt}
	p.mu.Lock()
	for i, c := range p.replicas {
		p.candidates[i].AddonLoad = 0
		if state := p.reported[i][addon]; state != protocol.AddonResident {
			p.candidates[i].AddonLoad, p.candidates[i].AddonQueued = c.averageLoad(), state == protocol.AddonQueued
		}
	}
	choice, _ := p.balancer.Choose(now, balance.Query{Prompt: prompt, Addon: addon, Candidates: p.candidates})
	sent := p.balancer.Send(now, p.candidates[choice.Candidate].ID, prompt, choice)
	p.candidates[choice.Candidate].Requests++
	if choice.Load > 0 {
		p.cold++
	}
	p.mu.Unlock()
	took, err := p.complete(choice.Candidate, addon, at)
	sent.FirstToken(now + took)
	sent.End(0)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.candidates[choice.Candidate].Requests--
	p.first = append(p.first, took)
	assert.NoError(p.t, err)
}

// complete returns the time from at to the first token of a replica.
func (p *trialPool) complete(replica int, addon string, at time.Time) (first time.Duration, err error) {
	done, err := p.replicas[replica].use(p.t.Context(), addon)
	if err != nil {
		return 0, err
	}
	defer done()
	_, err = p.models[replica].Complete(context.WithoutCancel(p.t.Context()), engines.CompletionRequest{Addon: addon,
		Prompt: fmt.Sprint(p.prompts.Add(1), strings.Repeat(" "+addon, 80))[:trialPrompt-1], MaxTokens: 4,
		IgnoreEOS: true}, func(engines.Chunk) error {
		if first == 0 {
			first = time.Since(at)
		}
		return nil
	})
	return first, err
}

// pace returns the interval of requests at which one core would be busy for a quarter of the time: four
// times the duration of one request.
func (p *trialPool) pace() time.Duration {
	const requests = 40
	began := time.Now()
	for i := range requests {
		p.send(fmt.Sprint("few-", i%p.slots))
	}
	p.first = nil
	return 4 * time.Since(began) / requests
}

// run sends requests for the addons that next returns, at random intervals, and waits for them.
func (p *trialPool) run(length, every time.Duration, next func() string) {
	random := rand.New(rand.NewPCG(3, uint64(len(p.first))))
	end := time.Now().Add(length)
	reported := time.Now()
	for at := time.Now(); at.Before(end); at = at.Add(time.Duration(random.ExpFloat64() * float64(every))) {
		if wait := time.Until(at); wait > 0 {
			<-time.After(wait)
		}
		if interval := 2 * time.Second / time.Duration(len(p.replicas)); time.Since(reported) > interval {
			reported = time.Now()
			turn := (p.turn + 1) % len(p.replicas)
			p.turn = turn
			p.requests.Go(func() { p.report(turn) })
		}
		id := next()
		p.requests.Go(func() { p.send(id) })
	}
	p.requests.Wait()
	for _, c := range p.replicas {
		c.mu.Lock()
		assert.LessOrEqual(p.t, c.occupied, c.limit)
		c.mu.Unlock()
	}
}

// A zipf draws numbers below n with probabilities that are proportional to 1/(number+1).
type zipf []float64

func newZipf(n int) zipf {
	z, sum := make(zipf, n), 0.0
	for i := range z {
		sum += 1 / float64(i+1)
		z[i] = sum
	}
	return z
}

func (z zipf) draw(r *rand.Rand) int { return sort.SearchFloat64s(z, r.Float64()*z[len(z)-1]) }

func quantile(all []time.Duration, share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(all))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))]
}

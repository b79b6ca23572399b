package balance_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/api/routing/balance"
	"anneal/engines"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/serve"
	"anneal/engines/embedded/tokenizer"
)

// Sizes of the prompts in TestRealEngines, in tokens. The documents fit into the caches of four
// replicas together, but not into that of each.
const (
	documents      = 16
	documentTokens = 3 * balance.BlockTokens
	cacheTokens    = 8 * 2 * balance.BlockTokens
	realReplicas   = 4
)

// TestRealEngines sends the same prompts to four replicas of the embedded engine by turns with two
// policies: the fewest requests, and the balancer. Prompts begin with one of several documents. It
// compares the times to the first token.
func TestRealEngines(t *testing.T) {
	turns, turn := 1, 3*time.Second
	full := os.Getenv("ANNEAL_GATEWAY") == "full"
	if full {
		turns, turn = 4, 9*time.Second
	} else if testing.Short() {
		t.Skip("takes some seconds")
	}
	engines := realEngines(t)
	every := paceOf(t, engines)
	fewest := &realPolicy{name: "fewest requests", engines: engines, busy: make([]int, realReplicas)}
	tokens := &realPolicy{name: "tokens", engines: engines, busy: make([]int, realReplicas), balancer: balance.New(nil)}
	for range turns {
		for _, p := range []*realPolicy{fewest, tokens} {
			p.run(t, turn/3, every)
			p.first, p.cached, p.total = nil, 0, 0
			p.run(t, turn, every)
			p.all, p.hits, p.tokens = append(p.all, p.first...), p.hits+p.cached, p.tokens+p.total
		}
	}
	for _, p := range []*realPolicy{fewest, tokens} {
		t.Logf("%-16s a request every %s: %d requests, hit %.2f, first token p50 %s p90 %s p99 %s", p.name,
			every.Round(time.Millisecond), len(p.all), p.hit(), p.quantile(0.5), p.quantile(0.9), p.quantile(0.99))
	}
	ratio := float64(tokens.quantile(0.9)) / float64(fewest.quantile(0.9))
	t.Logf("ratio of the p90: %.2f, of the p50: %.2f", ratio, float64(tokens.quantile(0.5))/float64(fewest.quantile(0.5)))
	assert.Greater(t, tokens.hit(), fewest.hit()+0.1)
	if full {
		assert.Less(t, ratio, 0.8)
	}
}

// realEngines returns replicas of a small model.
func realEngines(t *testing.T) (all []engines.Model) {
	bos := 256
	w := llama.NewWeights(llama.Config{ModelType: "llama", HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 4,
		KVHeads: 4, HeadDim: 32, VocabSize: 260, MaxPositions: 2048, NormEps: 1e-5, RopeTheta: 10000, HiddenAct: "silu",
		TorchDType: "float32", InitializerRange: 0.2, BOS: &bos, EOS: llama.TokenIDs{259}, TieWordEmbeddings: true})
	w.Initialize(11)
	dir := t.TempDir()
	require.NoError(t, w.Save(dir))
	require.NoError(t, tokenizer.NewBytes().Save(dir))
	const bytesPerToken = 4 * 2 * 4 * 128 // keys and values of four layers in float32
	for range realReplicas {
		m, err := serve.New(serve.Options{Parallelism: 1, CacheBytes: cacheTokens * bytesPerToken}).Load(t.Context(),
			engines.ModelFiles{Dir: dir})
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, m.Close()) })
		all = append(all, m)
	}
	return all
}

// promptTokens returns the tokens of a document and a question, which differ between scopes.
func promptTokens(document, question uint64) []int {
	tokens := make([]int, 0, documentTokens+96)
	for _, part := range []struct {
		seed uint64
		n    int
	}{{document, documentTokens}, {question, 96}} {
		random := rand.New(rand.NewPCG(part.seed, 7))
		for range part.n {
			tokens = append(tokens, random.IntN(256))
		}
	}
	return tokens
}

// paceOf returns the interval of requests that would keep the cores of this machine busy for four
// fifths of the time if no prompt were cached. It measures concurrent requests to all replicas.
func paceOf(t *testing.T, all []engines.Model) time.Duration {
	began := time.Now()
	var requests sync.WaitGroup
	for i := range 2 * realReplicas {
		requests.Go(func() {
			_, err := all[i%realReplicas].Complete(t.Context(), engines.CompletionRequest{MaxTokens: 1,
				PromptTokens: promptTokens(uint64(1000+i), 0)}, func(engines.Chunk) error { return nil })
			assert.NoError(t, err)
		})
	}
	requests.Wait()
	return time.Since(began) / (2 * realReplicas) * 5 / 4
}

// A realPolicy chooses replicas: by a balancer or, if that is nil, by the fewest requests.
type realPolicy struct {
	name     string
	engines  []engines.Model
	balancer *balance.Balancer

	mu            sync.Mutex
	busy          []int
	sent          uint64
	first, all    []time.Duration // times to the first token of this turn, and of all turns
	cached, total int             // tokens of the prompts of this turn
	hits, tokens  int             // of all turns
}

func (p *realPolicy) hit() float64 { return float64(p.hits) / float64(max(1, p.tokens)) }

func (p *realPolicy) quantile(share float64) time.Duration {
	sorted := slices.Sorted(slices.Values(p.all))
	return sorted[min(len(sorted)-1, int(share*float64(len(sorted))))].Round(time.Microsecond)
}

// origin is the time of the balancer's zero.
var origin = time.Now()

func (p *realPolicy) run(t *testing.T, length, every time.Duration) {
	random := rand.New(rand.NewPCG(5, p.sent))
	var requests sync.WaitGroup
	start, reported := time.Now(), time.Now()
	for at := start; at.Sub(start) < length; at = at.Add(time.Duration(random.ExpFloat64() * float64(every))) {
		if wait := time.Until(at); wait > 0 {
			<-time.After(wait)
		}
		if p.balancer != nil && time.Since(reported) > time.Second {
			reported = time.Now()
			requests.Go(func() { p.report(t) })
		}
		// the first documents are drawn more often than the others
		document := min(documents-1, int(1/(random.Float64()*(1-1.0/documents)+1.0/documents))-1+random.IntN(4))
		p.sent++
		number := p.sent
		requests.Go(func() { p.send(t, uint64(document), number) })
	}
	requests.Wait()
}

func (p *realPolicy) report(t *testing.T) {
	for i, m := range p.engines {
		load, err := m.(engines.LoadReporter).Load(t.Context())
		assert.NoError(t, err)
		p.balancer.Report(time.Since(origin), fmt.Sprint("r", i), balance.Report{PendingTokens: load.PendingTokens,
			CacheBlocks: load.CacheTokens / balance.BlockTokens})
	}
}

func (p *realPolicy) send(t *testing.T, document, number uint64) {
	salt := uint64(len(p.name)) << 32 // the policies share no prompts
	tokens := promptTokens(salt+document, salt+number+1<<20)
	began := time.Now()
	replica, sent := p.choose(tokens)
	var first time.Duration
	usage, err := p.engines[replica].Complete(t.Context(), engines.CompletionRequest{PromptTokens: tokens, MaxTokens: 4,
		IgnoreEOS: true}, func(engines.Chunk) error {
		if first == 0 {
			first = time.Since(began)
			if sent != nil {
				sent.FirstToken(time.Since(origin))
			}
		}
		return nil
	})
	assert.NoError(t, err)
	if sent != nil {
		sent.End(int64(usage.CachedTokens))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy[replica]--
	p.first = append(p.first, first)
	p.cached, p.total = p.cached+usage.CachedTokens, p.total+len(tokens)
}

// choose returns the index of a replica.
func (p *realPolicy) choose(tokens []int) (replica int, sent *balance.InFlight) {
	hasher := balance.NewHasher(nil)
	prompt := hasher.TokenIDs("", tokens)
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []balance.Candidate
	for i, n := range p.busy {
		all = append(all, balance.Candidate{ID: fmt.Sprint("r", i), Requests: n})
	}
	if p.balancer == nil {
		// of equal replicas the next one, as the gateway chose before
		turn := int(p.sent) % len(all)
		replica = slices.IndexFunc(all, func(c balance.Candidate) bool {
			return c.ID == slices.MinFunc(all, func(a, b balance.Candidate) int {
				return cmp.Or(cmp.Compare(a.Requests, b.Requests), cmp.Compare(distance(a.ID, turn), distance(b.ID, turn)))
			}).ID
		})
	} else {
		now := time.Since(origin)
		choice, _ := p.balancer.Choose(now, balance.Query{Prompt: prompt, Candidates: all})
		replica, sent = choice.Candidate, p.balancer.Send(now, all[choice.Candidate].ID, prompt, choice)
	}
	p.busy[replica]++
	return replica, sent
}

// distance returns how many replicas there are from the index turn to that of the replica id.
func distance(id string, turn int) int { return (int(id[1]-'0') - turn + realReplicas) % realReplicas }

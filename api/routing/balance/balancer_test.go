package balance

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func prompt(tokens int64, blocks ...uint64) Prompt { return Prompt{Tokens: tokens, Blocks: blocks} }

func replicas(ids ...string) (all []Candidate) {
	for _, id := range ids {
		all = append(all, Candidate{ID: id})
	}
	return all
}

// send chooses a replica for a prompt, and sends it there.
func send(t *testing.T, b *Balancer, now time.Duration, p Prompt, candidates []Candidate) (*InFlight, Choice) {
	t.Helper()
	choice, ok := b.Choose(now, Query{Prompt: p, Candidates: candidates})
	require.True(t, ok)
	return b.Send(now, candidates[choice.Candidate].ID, p, choice), choice
}

func TestChoice(t *testing.T) {
	long := prompt(4096, 1, 2, 3, 4, 5, 6, 7, 8)
	for _, row := range []struct {
		name       string
		prepare    func(b *Balancer)
		prompt     Prompt
		candidates []Candidate
		session    string
		want       string
		reason     string
		cached     int64
	}{
		{name: "the lowest ID of equal scores", prompt: prompt(10), candidates: replicas("b", "a"), want: "a"},
		{name: "the replica with less to process", prompt: prompt(10), candidates: replicas("a", "b"), want: "b",
			prepare: func(b *Balancer) { b.Report(0, "a", Report{PendingTokens: 100}) }},
		{name: "a cached prefix", prompt: long, candidates: replicas("a", "b"), want: "b", cached: 4096,
			prepare: func(b *Balancer) { b.Record(0, SentPrompt{Replica: "b", Blocks: long.Blocks}) }},
		{name: "no cached prefix behind a longer queue", prompt: long, candidates: replicas("a", "b"), want: "a",
			prepare: func(b *Balancer) {
				b.Record(0, SentPrompt{Replica: "b", Blocks: long.Blocks})
				b.Report(0, "b", Report{PendingTokens: 5000})
			}},
		{name: "fewer requests in progress", prompt: prompt(10), want: "b",
			candidates: []Candidate{{ID: "a", Requests: 2}, {ID: "b", Requests: 1}}},
		{name: "a free slot", prompt: long, want: "b",
			candidates: []Candidate{{ID: "a", Requests: 4, Slots: 4}, {ID: "b", Requests: 5, Slots: 8}}},
		{name: "a loaded addon", prompt: prompt(10), want: "b",
			candidates: []Candidate{{ID: "a", AddonLoad: time.Second}, {ID: "b", Requests: 3}}},
		{name: "the session's replica", prompt: prompt(10), candidates: replicas("a", "b"), session: "b", want: "b",
			reason: ReasonSession},
		{name: "not the session's replica when it is far behind", prompt: prompt(10), candidates: replicas("a", "b"),
			session: "b", want: "a", prepare: func(b *Balancer) { b.Report(0, "b", Report{PendingTokens: 20_000}) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			b := New(nil)
			if row.prepare != nil {
				row.prepare(b)
			}
			choice, ok := b.Choose(0, Query{Prompt: row.prompt, Candidates: row.candidates, Session: row.session})
			require.True(t, ok)
			assert.Equal(t, row.want, row.candidates[choice.Candidate].ID)
			assert.Equal(t, row.cached, choice.Cached)
			if row.reason != "" {
				assert.Equal(t, row.reason, choice.Reason)
			}
		})
	}
	_, ok := New(nil).Choose(0, Query{Prompt: long})
	assert.False(t, ok)
}

// TestCorrections checks that a wrong prediction is corrected.
func TestCorrections(t *testing.T) {
	b, one := New(nil), replicas("a")
	first, _ := send(t, b, 0, prompt(5600), one)
	_, choice := send(t, b, 0, prompt(10), one)
	assert.InDelta(t, 5600, choice.Pending, 10)
	first.FirstToken(500 * time.Millisecond) // half a second earlier than predicted
	_, choice = send(t, b, 500*time.Millisecond, prompt(10), one)
	assert.InDelta(t, 20, choice.Pending, 50)
	failed, _ := send(t, b, 500*time.Millisecond, prompt(56_000), one)
	failed.Fail(600 * time.Millisecond)
	failed.Fail(600 * time.Millisecond) // a repetition changes nothing
	_, choice = send(t, b, 600*time.Millisecond, prompt(10), one)
	assert.InDelta(t, 0, choice.Pending, 50)
}

// TestRateIsMeasured checks that the assumed rate of a replica approaches the measured one.
func TestRateIsMeasured(t *testing.T) {
	b, one := New(nil), replicas("a")
	now := time.Duration(0)
	for range 200 {
		s, _ := send(t, b, now, prompt(10_000), one)
		now += time.Second // 10,000 tokens per second
		s.FirstToken(now)
		s.End(0)
	}
	assert.InDelta(t, 10_000, b.typicalRate(), 500)
	b.indexOf("b")
	assert.InDelta(t, 10_000, b.replicas[b.index["b"]].rate/1000, 500, "a new replica is like the others")
}

// TestCacheSizeIsLearned checks that the assumed size of a cache shrinks when cached prompts are
// recomputed, and grows when predictions are right, unless the replica reports it.
func TestCacheSizeIsLearned(t *testing.T) {
	b, one := New(nil), replicas("a")
	p := prompt(1024, 1, 2)
	limit := func() int { return b.prefixes.lists[0].limit }
	s, _ := send(t, b, 0, p, one)
	s.End(1) // the replica counts cached tokens
	require.Equal(t, initialBlocks, limit(), "nothing was predicted")
	s, choice := send(t, b, 0, p, one)
	require.EqualValues(t, 1024, choice.Cached)
	s.End(0)
	assert.Equal(t, initialBlocks-initialBlocks/blocksLost, limit())
	s, _ = send(t, b, 0, p, one)
	s.End(1023)
	assert.Equal(t, initialBlocks-initialBlocks/blocksLost+blocksGained, limit())
	b.Report(0, "a", Report{PendingTokens: -1, CacheBlocks: 1})
	s, choice = send(t, b, 0, p, one)
	assert.EqualValues(t, 512, choice.Cached)
	s.End(0)
	assert.Equal(t, 1, limit())
}

// TestRemovedReplicasAreForgotten checks that a new replica does not inherit anything of a removed
// one, and that requests that end later change nothing.
func TestRemovedReplicasAreForgotten(t *testing.T) {
	b := New(nil)
	p := prompt(1024, 1, 2)
	s, _ := send(t, b, 0, p, replicas("a"))
	b.Keep([]string{"b"})
	choice, _ := b.Choose(0, Query{Prompt: p, Candidates: replicas("c")})
	assert.Zero(t, choice.Cached)
	assert.Zero(t, choice.Pending)
	s.FirstToken(time.Minute)
	s.End(1024)
	s.Fail(time.Minute)
	choice, _ = b.Choose(0, Query{Prompt: p, Candidates: replicas("c")})
	assert.Zero(t, choice.Pending)
	assert.Len(t, b.replicas, 1, "the state of the removed replica is reused")
}

func TestPromptsShareBlocksOfEqualPrefixes(t *testing.T) {
	h := NewHasher([]byte("secret"))
	size := BlockTokens * bytesPerToken
	text := strings.Repeat("a", size) + strings.Repeat("b", size) + "c"
	p := h.Text("scope", []byte(text))
	require.Len(t, p.Blocks, 2)
	assert.EqualValues(t, len(text)/bytesPerToken, p.Tokens)
	longer := h.Text("scope", []byte(text+strings.Repeat("d", size)))
	assert.Equal(t, p.Blocks, longer.Blocks[:2])
	assert.NotEqual(t, p.Blocks[0], h.Text("other", []byte(text)).Blocks[0])
	swapped := h.Text("scope", []byte(text[size:2*size]+text[:size]))
	assert.NotContains(t, swapped.Blocks, p.Blocks[1], "a hash covers the blocks before")
	tokens := make([]int, 2*BlockTokens+1)
	assert.Len(t, h.TokenIDs("scope", tokens).Blocks, 2)
	assert.Equal(t, h.TokenIDs("scope", tokens[:BlockTokens]).Blocks, h.TokenIDs("scope", tokens).Blocks[:1])
	tokens[0] = 1
	assert.NotEqual(t, h.TokenIDs("scope", make([]int, BlockTokens)).Blocks, h.TokenIDs("scope", tokens).Blocks[:1])
	assert.EqualValues(t, 1, h.Text("scope", nil).Tokens)
}

// BenchmarkChoose measures a choice among 1,000 replicas with 1,500 blocks each, of a prompt with
// 24 blocks, of which the first 4 are cached everywhere. It reports the 50th and 99th percentile.
func BenchmarkChoose(b *testing.B) {
	random := rand.New(rand.NewPCG(1, 1))
	balancer := New(nil)
	var all []Candidate
	for i := range 1000 {
		all = append(all, Candidate{ID: fmt.Sprintf("r%04d", i)})
		for range 75 {
			blocks := []uint64{1, 2, 3, 4}
			for range 20 {
				blocks = append(blocks, random.Uint64N(1_000_000))
			}
			balancer.Record(0, SentPrompt{Replica: all[i].ID, Uncached: random.Int64N(10_000), Blocks: blocks})
		}
		balancer.Report(0, all[i].ID, Report{PendingTokens: random.Int64N(10_000), CacheBlocks: 1500})
	}
	blocks := []uint64{1, 2, 3, 4}
	for range 20 {
		blocks = append(blocks, random.Uint64N(1_000_000))
	}
	p := prompt(24*BlockTokens, blocks...)
	var times []time.Duration
	for b.Loop() {
		begun := time.Now()
		balancer.Choose(0, Query{Prompt: p, Candidates: all})
		times = append(times, time.Since(begun))
	}
	reportPercentiles(b, times)
}

func reportPercentiles(b *testing.B, times []time.Duration) {
	slices.Sort(times)
	b.ReportMetric(float64(times[len(times)/2])/1000, "p50-us")
	b.ReportMetric(float64(times[len(times)*99/100])/1000, "p99-us")
}

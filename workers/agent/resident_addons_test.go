package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/engines"
	"anneal/workers/protocol"
)

// A limitedModel records the maximum number of loaded addons. Its completions fail for an addon
// that is not loaded.
type limitedModel struct {
	engines.Model
	limit int

	mu     sync.Mutex
	loaded map[string]bool
	calls  []string
	broken string // ID of an addon that cannot be loaded
	peak   int    // highest number of loaded addons so far
	during func() // called during each load; may be nil
	lost   bool   // each load succeeds, but its response is lost
}

// LoadAddon behaves like a client of vLLM: a canceled load may have been carried out, and a loaded
// addon cannot be loaded again.
func (m *limitedModel) LoadAddon(ctx context.Context, id, _ string) error {
	if m.during != nil {
		m.during()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.loaded[id] || id == m.broken {
		return fmt.Errorf("cannot load %s", id)
	}
	m.loaded[id] = true
	m.calls = append(m.calls, "+"+id)
	m.peak = max(m.peak, len(m.loaded))
	if m.lost {
		return errors.New("connection reset")
	}
	return ctx.Err()
}

func (m *limitedModel) UnloadAddon(id string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.loaded, id)
	m.calls = append(m.calls, "-"+id)
	return nil
}

func (m *limitedModel) Complete(_ context.Context, req engines.CompletionRequest, _ func(engines.Chunk) error) (
	engines.Usage, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if req.Addon != "" && !m.loaded[req.Addon] {
		return engines.Usage{}, engines.ErrAddonNotLoaded(req.Addon)
	}
	return engines.Usage{}, nil
}

func (m *limitedModel) take() (calls []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	calls, m.calls = m.calls, nil
	return calls
}

func newLimitedModel(limit int) *limitedModel {
	return &limitedModel{limit: limit, loaded: map[string]bool{}}
}

func newTestResidents(t *testing.T, m *limitedModel) *residentAddons {
	return newResidentAddons(t.Context(), m.limit, time.Minute, func(id string, err error) { t.Errorf("%s: %v", id, err) })
}

// residents returns addons of a model, each loaded once.
func residents(t *testing.T, m *limitedModel, ids ...string) *residentAddons {
	c := newTestResidents(t, m)
	for _, id := range ids {
		require.NoError(t, c.add(t.Context(), m, id, "", func() {}))
	}
	return c
}

func use(t *testing.T, c *residentAddons, id string) (done func()) {
	t.Helper()
	done, err := c.use(t.Context(), id)
	require.NoError(t, err)
	return done
}

// TestResidentAddonsAreEvicted checks which addon is unloaded to load another one.
func TestResidentAddonsAreEvicted(t *testing.T) {
	m := newLimitedModel(2)
	c := residents(t, m, "a", "b", "c")
	require.Equal(t, []string{"+a", "+b", "-a", "+c"}, m.take())
	use(t, c, "c")()
	use(t, c, "b")()
	require.Empty(t, m.take(), "both are loaded")
	use(t, c, "a")()
	require.Equal(t, []string{"-c", "+a"}, m.take())
	use(t, c, "unknown")()
	use(t, c, "")()
	var unlimited *residentAddons
	use(t, unlimited, "a")()
	require.Empty(t, m.take(), "the engine rejects unknown addons")
	require.True(t, c.remove("a"))
	require.True(t, c.remove("c"))
	require.False(t, c.remove("c"))
	require.Equal(t, []string{"-a"}, m.take(), "c is not loaded")
	m.broken = "c"
	require.ErrorContains(t, c.add(t.Context(), m, "c", "", func() {}), "cannot load c")
	require.False(t, c.remove("c"), "an addon that the engine rejects is not kept")
}

// TestAddonsInUseAreNotUnloaded checks that a request waits while all loaded addons are in use, and
// that a later request for one of them does not overtake the waiting one.
func TestAddonsInUseAreNotUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLimitedModel(2)
		c := residents(t, m, "a", "b", "c")
		first, second := use(t, c, "b"), use(t, c, "c")
		m.take()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.use(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Empty(t, m.take())
		var order []string
		var waiting sync.WaitGroup
		for _, id := range []string{"a", "b"} {
			waiting.Go(func() {
				done := use(t, c, id)
				order = append(order, id)
				done()
			})
			synctest.Wait()
		}
		require.Empty(t, order, "b waits behind a, which needs its place")
		first()
		waiting.Wait()
		second()
		require.Equal(t, []string{"a", "b"}, order)
		require.Equal(t, 2, m.peak)
	})
}

// TestClientDisconnectsDuringLoad checks that an addon is loaded although the client that requested
// it has disconnected, so that the agent knows what the engine has loaded.
func TestClientDisconnectsDuringLoad(t *testing.T) {
	m := newLimitedModel(1)
	c := residents(t, m, "a", "b")
	m.take()
	ctx, disconnect := context.WithCancel(t.Context())
	m.during = disconnect
	if done, err := c.use(ctx, "a"); err == nil {
		done()
	} else {
		require.ErrorIs(t, err, context.Canceled)
	}
	use(t, c, "a")()
	require.Equal(t, []string{"-b", "+a"}, m.take(), "the addon is loaded once")
	use(t, c, "b")()
	require.Equal(t, 1, m.peak)
}

// TestFrequentAddonsStay checks that the addon with the fewest requests is unloaded, although others were
// used longer ago, and that requests count half after addonHalfLife.
func TestFrequentAddonsStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLimitedModel(2)
		c := residents(t, m, "a", "b", "c")
		m.take()
		for _, id := range []string{"a", "a", "a", "b"} {
			use(t, c, id)()
		}
		m.take()
		time.Sleep(time.Minute)
		use(t, c, "c")()
		require.Equal(t, []string{"-b", "+c"}, m.take(), "a has three requests")
		for i := range 7 * 24 * 6 {
			time.Sleep(addonHalfLife)
			use(t, c, "c")()
			if i == 0 {
				use(t, c, "b")()
				require.Equal(t, []string{"-a", "+b"}, m.take(), "a's three requests count 1.4, c's two 1.5")
			}
		}
		use(t, c, "a")()
		require.Equal(t, []string{"-b", "+a"}, m.take(), "after a week")
	})
}

// TestLoadsAreAsynchronous checks that requests for loaded addons go on while others are loaded, that
// requests for the same addon wait for one load, and that loads are bounded.
func TestLoadsAreAsynchronous(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLimitedModel(6)
		ids := []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l"}
		c := residents(t, m, ids...)
		m.take()
		var loading, peak atomic.Int32
		m.during = func() {
			peak.Store(max(peak.Load(), loading.Add(1)))
			time.Sleep(time.Second)
			loading.Add(-1)
		}
		busy := use(t, c, "l")
		began := time.Now()
		var clients sync.WaitGroup
		for _, id := range []string{"a", "b", "c", "d", "e", "a", "b", "c", "d", "e"} {
			clients.Go(func() { use(t, c, id)() })
		}
		synctest.Wait()
		use(t, c, "l")()
		require.Equal(t, began, time.Now(), "no request for a loaded addon waits")
		require.Equal(t, protocol.AddonQueued, c.residency()["e"])
		require.Equal(t, protocol.AddonEvicted, c.residency()["g"])
		require.Equal(t, protocol.AddonResident, c.residency()["k"])
		clients.Wait()
		busy()
		require.Equal(t, 2*time.Second, time.Since(began), "five loads, four at a time")
		require.EqualValues(t, maxAddonLoads, peak.Load())
		require.Len(t, m.take(), 10, "each addon is loaded once, in place of another")
		require.Equal(t, 6, m.peak)
		require.NotZero(t, c.averageLoad())
	})
}

// TestWaitingRequestsThatEnd checks that an addon is not loaded for requests whose clients have
// disconnected before the load began.
func TestWaitingRequestsThatEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLimitedModel(1)
		c := residents(t, m, "a", "b")
		busy := use(t, c, "b")
		m.take()
		ctx, disconnect := context.WithCancel(t.Context())
		var client sync.WaitGroup
		client.Go(func() {
			_, err := c.use(ctx, "a")
			require.ErrorIs(t, err, context.Canceled)
		})
		synctest.Wait()
		disconnect()
		client.Wait()
		busy()
		use(t, c, "b")()
		require.Empty(t, m.take())
	})
}

// TestProvenAddonsAreLoadedAtTheirFirstRequest checks that addons that other replicas have loaded are
// loaded while there is space, and later ones at their first request.
func TestProvenAddonsAreLoadedAtTheirFirstRequest(t *testing.T) {
	m := newLimitedModel(1)
	c := residents(t, m)
	released := 0
	require.False(t, c.register(m, "a", "", func() {}), "there is space")
	require.NoError(t, c.add(t.Context(), m, "a", "", func() {}))
	require.True(t, c.register(m, "b", "", func() { released++ }))
	require.Equal(t, []string{"+a"}, m.take())
	use(t, c, "b")()
	require.Equal(t, []string{"-a", "+b"}, m.take())
	require.True(t, c.remove("b"))
	require.Equal(t, 1, released)
}

// TestAddonOfAFailedLoadIsUnloaded checks that an addon that the engine may have loaded although
// the load has failed is unloaded, also after a panic of the engine.
func TestAddonOfAFailedLoadIsUnloaded(t *testing.T) {
	m := newLimitedModel(1)
	c := residents(t, m, "a", "b")
	m.take()
	m.lost = true
	_, err := c.use(t.Context(), "a")
	require.ErrorContains(t, err, "connection reset")
	require.Equal(t, []string{"-b", "+a", "-a"}, m.take())
	m.lost, m.during = false, func() { panic("the engine is broken") }
	_, err = c.use(t.Context(), "a")
	require.ErrorContains(t, err, "the engine panicked")
	require.Equal(t, []string{"-a"}, m.take())
	m.during = nil
	use(t, c, "a")()
	require.Equal(t, 1, m.peak)
}

// TestRemovedAddonCountsUntilItIsUnloaded checks that the limit holds while an addon in use is
// removed and another one waits to be loaded.
func TestRemovedAddonCountsUntilItIsUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newLimitedModel(2)
		c := residents(t, m, "a", "b", "c")
		first, second := use(t, c, "b"), use(t, c, "c")
		m.take()
		var calls sync.WaitGroup
		calls.Go(func() { use(t, c, "a")() })
		synctest.Wait()
		calls.Go(func() { require.True(t, c.remove("b")) })
		synctest.Wait()
		first()
		calls.Wait()
		second()
		require.Equal(t, 2, m.peak)
		require.Equal(t, []string{"-b", "+a"}, m.take())
		require.False(t, c.remove("b"))
	})
}

// TestResidentAddonsUnderLoad checks that concurrent requests for more addons than the limit are
// all served, that the limit always holds, and that an addon that is unassigned is released.
func TestResidentAddonsUnderLoad(t *testing.T) {
	m := newLimitedModel(3)
	var released sync.Map
	c := newTestResidents(t, m)
	ids := []string{"a", "b", "c", "d", "e", "f"}
	for _, id := range ids {
		require.NoError(t, c.add(t.Context(), m, id, "", func() { released.Store(id, true) }))
	}
	var clients sync.WaitGroup
	for client := range 8 {
		clients.Go(func() {
			random := rand.New(rand.NewPCG(7, uint64(client)))
			for range 200 {
				id := ids[random.IntN(len(ids)-1)]
				done, err := c.use(t.Context(), id)
				if err == nil {
					_, err = m.Complete(t.Context(), engines.CompletionRequest{Addon: id}, nil)
					done()
				}
				if err != nil {
					t.Errorf("%s: %v", id, err)
					return
				}
			}
		})
	}
	require.True(t, c.remove("f"))
	clients.Wait()
	require.Equal(t, 3, m.peak)
	_, found := released.Load("f")
	require.True(t, found)
	c.close()
	for _, id := range ids {
		_, found := released.Load(id)
		require.True(t, found, id)
	}
}

// TestReplicaKeepsFewAddons checks that a replica that may load one addon at a time serves all of
// its assigned addons, and keeps the files of each until it is unassigned.
func TestReplicaKeepsFewAddons(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, _ := newTestReplica(t)
		m := newLimitedModel(1)
		r.assignment.AddonSlots = 1
		r.addons.open(r)
		close(r.addons.opened)
		r.model, r.phase = m, "ready"
		r.assign("a", "b", "c")
		for _, id := range []string{"a", "b", "c", "a", ""} {
			require.Contains(t, []string{"", protocol.AddonLoaded}, stateOf(r, id))
			_, err := r.complete(t.Context(), engines.CompletionRequest{Addon: id}, nil)
			require.NoError(t, err, id)
		}
		require.Equal(t, 1, m.peak)
		require.Equal(t, 3, users(r.agent.cache))
		r.assign("b")
		require.Equal(t, 1, users(r.agent.cache))
		_, err := r.complete(t.Context(), engines.CompletionRequest{Addon: "a"}, nil)
		require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
		_, err = r.complete(t.Context(), engines.CompletionRequest{Addon: "b"}, nil)
		require.NoError(t, err)
		r.addons.resident.close()
		require.Zero(t, users(r.agent.cache))
		require.True(t, slices.Contains(m.take(), "-a"))
	})
}

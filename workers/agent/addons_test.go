package agent

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// A slowModel is a model whose engine answers each call about an addon when the
// test says so, whatever its context is.
type slowModel struct {
	engines.Model
	answer map[string]chan error

	mu    sync.Mutex
	begun []string // calls, in order
}

func (m *slowModel) call(what string) error {
	m.mu.Lock()
	m.begun = append(m.begun, what)
	m.mu.Unlock()
	if wait := m.answer[what]; wait != nil {
		return <-wait
	}
	return nil
}

func (m *slowModel) LoadAddon(_ context.Context, id, _ string) error { return m.call("load " + id) }

func (m *slowModel) UnloadAddon(id string) error { return m.call("unload " + id) }

// bearer is a replica that has a model; calls named in slow wait to be answered.
func bearer(t *testing.T, slow ...string) (*replica, *slowModel) {
	m := &slowModel{answer: map[string]chan error{}}
	for _, what := range slow {
		m.answer[what] = make(chan error)
	}
	a := &Agent{options: Options{LoadWithin: time.Minute}, log: slog.New(slog.DiscardHandler),
		wake:  make(chan struct{}, 1),
		cache: newCache(t, t.TempDir(), 1<<20)}
	r := newReplica(a, t.Context(), protocol.ServeAssignment{})
	r.model = m
	close(r.addons.opened)
	t.Cleanup(func() {
		r.end()
		for _, wait := range m.answer {
			close(wait)
		}
		a.work.Wait()
	})
	return r, m
}

// beat is a beat with an order that keeps what is named, and has it loaded.
func (r *replica) beat(wanted ...string) {
	order := protocol.ReplicaAddons{Keep: wanted}
	for _, id := range wanted {
		order.Load = append(order.Load, protocol.AddonAssignment{ID: id, Files: protocol.FileSet{Key: "k"}})
	}
	r.addons.apply(r.addons.state(), order)
	synctest.Wait()
}

func stateOf(r *replica, id string) string {
	for _, one := range r.addons.state() {
		if one.ID == id {
			return one.State
		}
	}
	return ""
}

func users(c *cache) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, e := range c.entries {
		n += e.users
	}
	return n
}

// A beat does not wait for an engine that takes its time to unload: a node that
// falls silent is lost.
func TestUnloadingKeepsNoBeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := bearer(t, "unload a")
		r.beat("a", "b")
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "a"))
		beaten := make(chan struct{})
		go func() {
			r.addons.apply(r.addons.state(), protocol.ReplicaAddons{Keep: []string{"b"}})
			close(beaten)
		}()
		synctest.Wait()
		require.Contains(t, m.begun, "unload a")
		select {
		case <-beaten:
		default:
			m.answer["unload a"] <- nil
			t.Fatal("the beat waits")
		}
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "b"))
		m.answer["unload a"] <- nil
	})
}

// What an engine has loaded after its time is over is unloaded, and its files
// stay for as long as the engine may read them.
func TestWhatIsLoadedTooLateIsUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := bearer(t, "load a")
		r.beat("a")
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		require.Contains(t, r.addons.state()[0].Reason, "did not load the addon within 1m0s")
		require.Equal(t, []string{"load a"}, m.begun, "an engine that hangs is not asked again")
		require.Equal(t, 1, users(r.agent.cache))
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a"}, m.begun)
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		require.Zero(t, users(r.agent.cache))
	})
}

// An addon that is not wanted any more while its engine loads it is unloaded,
// before the same one is loaded again.
func TestAnAddonIsWantedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := bearer(t, "load a", "unload a")
		r.beat("a")
		r.beat()
		require.Empty(t, stateOf(r, "a"))
		r.beat("a")
		require.Equal(t, []string{"load a"}, m.begun)
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a"}, m.begun)
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		m.answer["unload a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a", "load a"}, m.begun)
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "a"))

		r.beat()
		r.beat("a")
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		m.answer["unload a"] <- nil
		synctest.Wait()
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"unload a", "load a"}, m.begun[3:])
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "a"))
	})
}

// One that waits for an engine which never comes back fails in its time, and
// others are loaded meanwhile.
func TestAnAddonWhoseEngineHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := bearer(t, "unload a")
		r.beat("a")
		r.beat()
		r.beat("a", "b")
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "b"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		m.answer["unload a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a", "load b"}, m.begun)
	})
}

// A load that fails for a moment's reason is tried again; a refusal is not.
func TestLoadingIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := bearer(t, "load a")
		r.beat("a")
		m.answer["load a"] <- errors.New("no memory")
		time.Sleep(addonPause)
		synctest.Wait()
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		m.answer["load a"] <- domain.Errorf(domain.InvalidArgument, "the rank is odd")
		synctest.Wait()
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		require.Equal(t, []string{"load a", "load a"}, m.begun)
		require.Zero(t, users(r.agent.cache))
	})
}

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

// A slowModel is a model in which loading and unloading an addon return when the test releases the
// call.
type slowModel struct {
	engines.Model
	answer map[string]chan error

	mu    sync.Mutex
	begun []string // names of the engine calls that have begun, in order
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

// newTestReplica returns a replica with a loaded model. slow lists the calls of the model that
// return only when the test has sent their result to the model's answer channel.
func newTestReplica(t *testing.T, slow ...string) (*replica, *slowModel) {
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

// assign applies an assignment that keeps or loads the wanted addons.
func (r *replica) assign(wanted ...string) {
	assignment := protocol.ReplicaAddons{Keep: wanted}
	for _, id := range wanted {
		assignment.Load = append(assignment.Load, protocol.AddonAssignment{ID: id, Files: protocol.FileSet{Key: "k"}})
	}
	r.addons.apply(r.addons.state(), assignment)
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

// TestUnloadingDoesNotDelayHeartbeats checks that a heartbeat does not wait for an engine that is
// slow to unload an addon.
func TestUnloadingDoesNotDelayHeartbeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newTestReplica(t, "unload a")
		r.assign("a", "b")
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "a"))
		replied := make(chan struct{})
		go func() {
			r.addons.apply(r.addons.state(), protocol.ReplicaAddons{Keep: []string{"b"}})
			close(replied)
		}()
		synctest.Wait()
		require.Contains(t, m.begun, "unload a")
		select {
		case <-replied:
		default:
			m.answer["unload a"] <- nil
			t.Fatal("the heartbeat waits")
		}
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "b"))
		m.answer["unload a"] <- nil
	})
}

// TestLateAddonIsUnloaded checks that an addon that is loaded after the timeout is unloaded, and
// that its files stay in the cache while the engine may read them.
func TestLateAddonIsUnloaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newTestReplica(t, "load a")
		r.assign("a")
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		time.Sleep(time.Hour)
		synctest.Wait()
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		require.Contains(t, r.addons.state()[0].Reason, "did not load the addon within 1m0s")
		require.Equal(t, []string{"load a"}, m.begun, "the load is not retried after a timeout")
		require.Equal(t, 1, users(r.agent.cache))
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a"}, m.begun)
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		require.Zero(t, users(r.agent.cache))
	})
}

// TestAddonIsAssignedAgain checks that an addon that is dropped and assigned again during its load
// is unloaded before it is loaded again.
func TestAddonIsAssignedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newTestReplica(t, "load a", "unload a")
		r.assign("a")
		r.assign()
		require.Empty(t, stateOf(r, "a"))
		r.assign("a")
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

		r.assign()
		r.assign("a")
		require.Equal(t, protocol.AddonLoading, stateOf(r, "a"))
		m.answer["unload a"] <- nil
		synctest.Wait()
		m.answer["load a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"unload a", "load a"}, m.begun[3:])
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "a"))
	})
}

// TestHangingEngine checks that an addon that waits for a hanging call of the engine times out, and
// that other addons are loaded.
func TestHangingEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newTestReplica(t, "unload a")
		r.assign("a")
		r.assign()
		r.assign("a", "b")
		require.Equal(t, protocol.AddonLoaded, stateOf(r, "b"))
		time.Sleep(2 * time.Minute)
		synctest.Wait()
		require.Equal(t, protocol.AddonFailed, stateOf(r, "a"))
		m.answer["unload a"] <- nil
		synctest.Wait()
		require.Equal(t, []string{"load a", "unload a", "load b"}, m.begun)
	})
}

// TestLoadingIsRetried checks that a transient failure to load an addon is retried, and that a
// permanent one is not.
func TestLoadingIsRetried(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r, m := newTestReplica(t, "load a")
		r.assign("a")
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

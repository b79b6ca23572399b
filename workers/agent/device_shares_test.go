package agent

import (
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// TestSharesOfDevices checks that the work of a slot gets one device, that no device is used beyond its
// memory while earlier work stops, and that a device that fails ends all replicas that share it.
func TestSharesOfDevices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const l4 = "VENDOR_A_L4_24GB"
		slot := func(n int) domain.DeviceSlot { return domain.DeviceSlot{Type: l4, Number: n} }
		d := newDevices(engines.NumberDevices(map[string]int{l4: 2}))
		a, releaseA, err := d.acquireShare(t.Context(), "a", slot(1), 600)
		require.NoError(t, err)
		b, releaseB, err := d.acquireShare(t.Context(), "b", slot(1), 400)
		require.NoError(t, err)
		require.Equal(t, a, b, "one device")
		failed := make(chan string, 2)
		d.use(a, "a", func(error) { failed <- "a" })
		require.Equal(t, "a", d.status()[0].Allocation)
		require.Empty(t, d.status()[0].Sharing)
		d.use(b, "b", func(error) { failed <- "b" })
		require.Equal(t, []string{"a", "b"}, d.status()[0].Sharing)

		var whole, c []engines.Device
		go func() { whole, _, _ = d.acquire(t.Context(), map[string]int{l4: 2}) }()
		go func() { c, _, _ = d.acquireShare(t.Context(), "c", slot(1), 500) }()
		synctest.Wait()
		require.Nil(t, whole, "a device is shared")
		require.Nil(t, c, "the slot has no capacity before a has ended")
		releaseA()
		releaseA()
		synctest.Wait()
		require.Equal(t, b, c)
		require.Nil(t, whole)

		require.True(t, d.fail(b[0], "Xid 79"))
		require.Equal(t, "b", <-failed)
		require.Empty(t, failed, "a has ended before")
		var e []engines.Device
		go func() { e, _, _ = d.acquireShare(t.Context(), "e", slot(1), 100) }()
		synctest.Wait()
		require.Nil(t, e, "nothing joins a failed device")
		releaseB()
		d.releaseShare("c", slot(1), 500)
		synctest.Wait()
		require.Equal(t, 1, e[0].Index, "a slot that is free gets a device that works")
		require.Nil(t, whole)
		d.releaseShare("e", slot(1), 100)
		d.restore(b[0])
		synctest.Wait()
		require.Len(t, whole, 2)
		require.Empty(t, d.slots)
	})
}

// TestOnlyEnginesThatLimitThemselvesShare checks which nodes offer shares.
func TestOnlyEnginesThatLimitThemselvesShare(t *testing.T) {
	for name, c := range map[string]struct {
		allowed, limits, offers bool
		fails                   bool
	}{
		"not allowed":           {allowed: false, limits: true},
		"allowed":               {allowed: true, limits: true, offers: true},
		"engine without limits": {allowed: true, limits: false, fails: true},
		"neither":               {},
	} {
		t.Run(name, func(t *testing.T) {
			a, err := New(Options{Node: "n1", Dir: t.TempDir(), URL: "nats://127.0.0.1:1", Capacity: map[string]int{"L4": 1},
				ShareAccelerators: c.allowed, Engine: engines.Engine{Name: "e", Completer: sharingCompleter{},
					SharesDevices: c.limits}})
			if c.fails {
				require.ErrorContains(t, err, "share-accelerators: the engine e does not limit the memory")
				return
			}
			require.NoError(t, err)
			if c.offers {
				require.Contains(t, a.spec.Engines, domain.ShareAbility)
			} else {
				require.NotContains(t, a.spec.Engines, domain.ShareAbility)
			}
		})
	}
}

type sharingCompleter struct{ engines.Completer }

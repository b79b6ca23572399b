package agent

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

func TestDevicesAreExclusive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const l4, h100 = "VENDOR_A_L4_24GB", "VENDOR_A_H100_80GB"
		d := newDevices(engines.NumberDevices(map[string]int{l4: 3, h100: 1}))
		first, give, err := d.acquire(t.Context(), map[string]int{l4: 2})
		require.NoError(t, err)
		require.Equal(t, []engines.Device{{Type: l4, Index: 1}, {Type: l4, Index: 2}}, first)
		none, _, err := d.acquire(t.Context(), nil)
		require.NoError(t, err)
		require.Empty(t, none)

		var second []engines.Device
		go func() { second, _, _ = d.acquire(t.Context(), map[string]int{l4: 2, h100: 1}) }()
		synctest.Wait()
		require.Nil(t, second, "it waits for the devices of the first")
		give()
		give()
		synctest.Wait()
		require.Equal(t, []engines.Device{{Type: h100}, {Type: l4, Index: 1}, {Type: l4, Index: 2}}, second)

		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, give, err = d.acquire(ctx, map[string]int{h100: 1})
		require.Equal(t, domain.Unavailable, domain.CodeOf(err))
		give()
	})
}

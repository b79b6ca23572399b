package engines_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

func TestVisibleDevicesEnv(t *testing.T) {
	all := engines.NumberDevices(map[string]int{
		"VENDOR_A_L4_24GB": 2, "VENDOR_A_H100_80GB": 1, "VENDOR_B_MI300X_192GB": 2,
	})
	require.Equal(t, []engines.Device{
		{Type: "VENDOR_A_H100_80GB", Index: 0}, {Type: "VENDOR_A_L4_24GB", Index: 1},
		{Type: "VENDOR_A_L4_24GB", Index: 2}, {Type: "VENDOR_B_MI300X_192GB", Index: 0},
		{Type: "VENDOR_B_MI300X_192GB", Index: 1},
	}, all)
	require.Equal(t, []string{"CUDA_VISIBLE_DEVICES=1,2", "CUDA_DEVICE_ORDER=PCI_BUS_ID"},
		engines.VisibleDevicesEnv(all[1:3]))
	require.Equal(t, []string{"HIP_VISIBLE_DEVICES=1"}, engines.VisibleDevicesEnv(all[4:]))
	require.Len(t, engines.VisibleDevicesEnv(all), 3)
	require.Empty(t, engines.VisibleDevicesEnv(nil))
}

package node

import (
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"
)

// TestNodesOfferDevicesThatTheyUse checks that a node offers the devices of its machine only if one
// of its engines computes on them.
func TestNodesOfferDevicesThatTheyUse(t *testing.T) {
	for want, lines := range map[bool][][]string{
		false: {{}, {"--engine", "embedded", "--trainer", "embedded"}, {"--speech", "none"}},
		true:  {{"--engine", "vllm"}, {"--trainer", "torch"}, {"--speech", "whisper.cpp"}},
	} {
		for _, args := range lines {
			var flags EngineFlags
			set := pflag.NewFlagSet("serve", pflag.ContinueOnError)
			flags.Add(set)
			require.NoError(t, set.Parse(args))
			require.Equal(t, want, flags.usesDevices(), "%v", args)
		}
	}
}

package node

import (
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"anneal/domain"
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

// TestGangAddressIsChecked checks that a gang address needs PyTorch, and is an address of the machine.
func TestGangAddressIsChecked(t *testing.T) {
	for line, want := range map[string]string{
		"--trainer torch --gang-address 127.0.0.1": "",
		"--gang-address 127.0.0.1":                 "requires --trainer torch",
		"--trainer torch --gang-address 192.0.2.1": "192.0.2.1 is not an address of this machine",
		"--trainer torch --gang-address localhost": `"localhost" is not an IP address`,
	} {
		var flags EngineFlags
		set := pflag.NewFlagSet("work", pflag.ContinueOnError)
		flags.Add(set)
		require.NoError(t, set.Parse(strings.Fields(line)))
		var v domain.Violations
		flags.check(&v)
		if want == "" {
			require.NoError(t, v.Err(), line)
			continue
		}
		require.ErrorContains(t, v.Err(), want)
	}
}

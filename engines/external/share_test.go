package external

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// TestSharesOfDevices checks how each preset passes a share of a device to its server, and which command
// lines cannot obey one.
func TestSharesOfDevices(t *testing.T) {
	for name, c := range map[string]struct {
		preset, command string
		shares          bool
		with, without   string // in the command line with a share of 250, and with whole devices
	}{
		"vllm":      {VLLM, "", true, "--gpu-memory-utilization 0.250", ""},
		"vllm, set": {VLLM, "vllm serve {dir} --port {port} --gpu-memory-utilization 0.9", false, "", ""},
		"vllm, placeholder": {VLLM, "vllm serve {dir} --port {port} --gpu-memory-utilization {share}", true,
			"--gpu-memory-utilization 0.250", "--gpu-memory-utilization 1.000"},
		"llama.cpp": {LlamaCpp, "", false, "", ""},
		"openai":    {OpenAI, "serve {dir} {port}", false, "", ""},
		"openai, placeholder": {OpenAI, "serve {dir} {port} --memory={share}", true, "--memory=0.250",
			"--memory=1.000"},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, c.shares, SharesDevices(c.preset, c.command))
			p := presets[c.preset]
			if c.command == "" {
				c.command = p.command
			}
			words, err := parse(c.command)
			require.NoError(t, err)
			if !c.shares {
				_, err := completer{Options{Preset: c.preset, Dir: t.TempDir()}, p, words}.Load(t.Context(),
					engines.ModelFiles{Dir: t.TempDir(), DeviceShare: 250})
				require.ErrorContains(t, err, "acceleratorShare: the node's engine "+c.preset+" does not limit")
				return
			}
			with := strings.Join(p.commandLine(words, arguments{share: 250}), " ")
			require.Equal(t, 1, strings.Count(with, c.with), with)
			without := strings.Join(p.commandLine(words, arguments{}), " ")
			require.NotContains(t, without, "0.250")
			require.Contains(t, without, c.without)
		})
	}
}

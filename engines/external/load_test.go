package external

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/engines"
)

// fakeMetrics are metrics in vLLM's format, of two engines (data parallelism).
const fakeMetrics = `# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 3.0
vllm:num_requests_running{engine="1",model_name="m"} 2.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting{engine="1",model_name="m"} 0.0
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="m"} 0.25
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="0",num_gpu_blocks="1000",prefix="a \"} b"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",engine="1",num_gpu_blocks="1000"} 1.0
`

func TestLoadOfVLLM(t *testing.T) {
	unknown := engines.NoLoad()
	for name, c := range map[string]struct {
		metrics string
		want    engines.ModelLoad
	}{
		"two engines": {fakeMetrics, engines.ModelLoad{PendingTokens: -1, Running: 5, Waiting: 7, CacheTokens: 32_000,
			CacheUsed: 12_000}},
		"an older version": {"vllm:gpu_cache_usage_perc 0.5\n" +
			"vllm:cache_config_info{num_gpu_blocks=\"10\",block_size=\"16\"} 1",
			engines.ModelLoad{PendingTokens: -1, Running: -1, Waiting: -1, CacheTokens: 160, CacheUsed: 80}},
		"no size": {"vllm:kv_cache_usage_perc 0.5\n" +
			"vllm:cache_config_info{num_gpu_blocks=\"None\",block_size=\"16\"} 1", unknown},
		"another server": {"http_requests_total{code=\"200\"} 5\n\n{} {", unknown},
		"not numbers": {"vllm:num_requests_running NaN\nvllm:num_requests_waiting -1\nvllm:num_requests_waiting{a=\"b 4\n" +
			"vllm:num_requests_running{a} 5\nvllm:num_requests_running", unknown},
		"nothing": {"", unknown},
	} {
		load, err := loadOfVLLM(strings.NewReader(c.metrics))
		require.NoError(t, err, name)
		assert.Equal(t, c.want, load, name)
	}
}

func FuzzLoadOfVLLM(f *testing.F) {
	f.Add(fakeMetrics)
	f.Add("vllm:num_requests_running{a=\"")
	f.Fuzz(func(t *testing.T, metrics string) {
		load, err := loadOfVLLM(strings.NewReader(metrics))
		if err == nil {
			assert.GreaterOrEqual(t, load.CacheTokens, int64(-1))
			assert.LessOrEqual(t, load.CacheUsed, max(load.CacheTokens, 0))
		}
	})
}

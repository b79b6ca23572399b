package cli

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const topMetrics = `# TYPE anneal_world_position gauge
anneal_world_position 120
# TYPE anneal_nats_connected gauge
anneal_nats_connected 1
# TYPE anneal_http_requests_total counter
anneal_http_requests_total{route="/a",method="GET",status="200"} 40
anneal_http_requests_total{route="/b",method="GET",status="200"} 2
# TYPE anneal_jobs gauge
anneal_jobs{kind="sft",state="RUNNING"} 2
anneal_jobs{kind="sft",state="PENDING"} 3
# TYPE anneal_job_wait_seconds gauge
anneal_job_wait_seconds{kind="sft"} 90
anneal_job_wait_seconds{kind="dpo"} 20
# TYPE anneal_node_accelerators gauge
anneal_node_accelerators{node="n1",type="H",state="allocated"} 6
anneal_node_accelerators{node="n1",type="H",state="free"} 2
# TYPE anneal_deployment_replicas gauge
anneal_deployment_replicas{account="a",deployment="d",state="desired"} 2
anneal_deployment_replicas{account="a",deployment="d",state="ready"} 1
anneal_deployment_replicas{account="b",deployment="d",state="ready"} 4
`

// TestTop checks the values that `anneal top` shows: sums over labels, rates between two readings,
// and rows by node and by account and deployment.
func TestTop(t *testing.T) {
	text := topMetrics
	client, _ := clientOfHandler(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics/detailed" {
			_, _ = io.WriteString(w, text)
		}
	})
	first, err := client.readMetrics(t.Context())
	require.NoError(t, err)
	text = strings.ReplaceAll(text, `status="200"} 40`, `status="200"} 60`)
	second, err := client.readMetrics(t.Context())
	require.NoError(t, err)
	second.time = first.time.Add(2 * time.Second)
	var all map[string]any
	encoded, err := json.Marshal(second.summary(first))
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(encoded, &all))
	for name, want := range map[string]any{"position": 120.0, "natsConnected": true, "requestsPerSecond": 10.0,
		"unfinishedJobs": 5.0, "runningJobs": 2.0, "longestJobWaitSeconds": 90.0,
		"nodes": []any{map[string]any{"node": "n1", "devices": 8.0, "allocated": 6.0, "failed": 0.0}},
	} {
		require.Equal(t, want, all[name], name)
	}
	deployments := all["deployments"].([]any)
	require.Len(t, deployments, 2)
	require.Equal(t, []any{"a/d", 2.0, 1.0}, []any{deployments[0].(map[string]any)["deployment"],
		deployments[0].(map[string]any)["desired"], deployments[0].(map[string]any)["ready"]})
	require.Equal(t, "b/d", deployments[1].(map[string]any)["deployment"])
	var out strings.Builder
	require.NoError(t, second.print(&out, first))
	require.Contains(t, out.String(), "position 120")
	require.Contains(t, out.String(), "requests/s 10")
	require.Regexp(t, `(?m)^n1 +8 +6 +0$`, out.String())
	require.Regexp(t, `(?m)^a/d +2 +1 +0 +0 +0$`, out.String())
}

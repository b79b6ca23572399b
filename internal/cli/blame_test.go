package cli

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRootsOf checks that a change names the API key and the client's address of the request that caused
// it, also if a task or a scheduler recorded it.
func TestRootsOf(t *testing.T) {
	event := func(id, actor, cause, request string) map[string]any {
		e := map[string]any{"id": id, "actor": actor, "cause": cause, "correlation": request}
		if strings.Contains(actor, "/apiKeys/") {
			e["clientaddress"] = "192.0.2." + id
		}
		return e
	}
	const key, other = "accounts/a/apiKeys/k", "accounts/a/apiKeys/o"
	first, fifth := root{key, "192.0.2.1"}, root{other, "192.0.2.5"}
	want := map[string]root{"1": first, "2": first, "3": first, "4": {}, "5": fifth, "6": fifth}
	require.Equal(t, want, rootsOf([]map[string]any{
		event("1", key, "", "r1"),
		event("2", "task/validator", "1", "r1"),
		event("3", "task/validator", "elsewhere", "r1"),
		event("4", "scheduler/jobs", "", ""),
		event("5", other, "", "r2"),
		event("6", "task/validator", "5", "r1"),
	}))
}

// TestChangesOfReusedName checks that the changes of a resource do not belong to an earlier resource of
// its name, and that a change of a list or of a nested field is one change.
func TestChangesOfReusedName(t *testing.T) {
	event := func(position, eventType string, data map[string]any) map[string]any {
		return map[string]any{"position": position, "type": eventType, "id": position, "data": data}
	}
	spec := func(maximum int, tags ...any) map[string]any {
		return map[string]any{"baseModel": "m", "maxReplicaCount": maximum, "directRouteHandle": "h",
			"placement": map[string]any{"regions": tags}, "status": map[string]any{"code": "OK"}}
	}
	all, err := changesOf("accounts/a/deployments/d", []map[string]any{
		event("1", "deployment.created.v1", spec(2, "A")),
		event("2", "deployment.purged.v1", map[string]any{}),
		event("3", "deployment.created.v1", spec(3, "A")),
		event("4", "deployment.updated.v1", spec(5, "A", "B")),
	})
	require.NoError(t, err)
	text := func(changes []map[string]any) (lines [][]any) {
		for _, change := range changes {
			lines = append(lines, []any{change["position"], change["field"], change["oldText"], change["newText"]})
		}
		return lines
	}
	of, err := changesOfField(all, "accounts/a/deployments/d", "maxReplicaCount")
	require.NoError(t, err)
	require.Equal(t, [][]any{{"1", "maxReplicaCount", "", "2"}, {"2", wholeResource, "exists", ""},
		{"3", "maxReplicaCount", "", "3"}, {"4", "maxReplicaCount", "3", "5"}}, text(of))
	of, err = changesOfField(all, "accounts/a/deployments/d", "placement")
	require.NoError(t, err)
	require.Equal(t, []any{"4", "placement.regions", `["A"]`, `["A","B"]`}, text(of)[len(of)-1])
	for _, change := range newestChanges(all) {
		require.Contains(t, []any{"3", "4"}, change["position"])
	}
	require.Empty(t, newestChanges(all[:0]))

	_, err = changesOf("accounts/a/deployments/d", []map[string]any{event("1", "deployment.forgotten.v1", nil)})
	require.ErrorContains(t, err, "position 1: deployments: unknown event")
}

package api

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inert"
	"anneal/api/request"
	"anneal/domain"
)

// registerEngines registers a node that trains and serves with engines.
func registerEngines(name domain.Name, engines ...string) domain.Intent {
	return domain.Intend(domain.Nodes, name, domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: append([]string{
		"train", "complete"}, engines...), Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096}}})
}

// TestFieldsThatEnginesIgnore checks, for each field that an engine ignores, that a request with the
// field gets a warning while a node has that engine, and that it gets none while no node has it.
func TestFieldsThatEnginesIgnore(t *testing.T) {
	values := map[string]string{"ngramSpeculationLength": "3", "draftTokenCount": "4", "maxContextLength": "128",
		"autoTune.longPrompt": "true", "chunkSize": "5", "maxConcurrentRollouts": "2",
		"maxInferenceReplicaCount": "2", "maxStaleness": "1"}
	collections := []string{"deployments", "reinforcementFineTuningJobs"}
	for _, f := range inert.Table {
		if f.When == nil || f.When.Engines == nil || !slices.Contains(collections, f.Requests[0]) {
			continue
		}
		for _, engine := range []string{"", "vllm", "llama.cpp", "openai", "torch"} {
			require.Contains(t, values, f.Path)
			facts := inert.Facts{Engines: func() []string { return []string{engine} }}
			require.NoError(t, json.Unmarshal([]byte(values[f.Path]), &facts.Value))
			ignores := f.When.Holds(facts)
			s := newHarness(t, request.Limits{})
			s.do(registerEngines("accounts/system/nodes/embedded"))
			if engine != "" {
				s.do(registerEngines("accounts/system/nodes/server", domain.EngineAbility(engine)))
			}
			a := s.engineRequest(f, values[f.Path])
			want := []string(nil)
			if ignores {
				want = []string{f.Warning()}
				require.Contains(t, f.Warning(), engine)
			}
			require.Equal(t, want, a.header.Values(request.WarningHeader), "%s on %s", f.Path, engine)
		}
	}
}

// engineRequest creates the resource of a field with a value.
func (s *harness) engineRequest(f inert.Field, value string) response {
	name, inner, nested := strings.Cut(f.Path, ".")
	if nested {
		value = `{"` + inner + `": ` + value + `}`
	}
	set := `"` + name + `": ` + value
	if f.Requests[0] == "deployments" {
		if name == "draftTokenCount" { // otherwise it has no effect on any node
			set += `, "draftModel": "accounts/default/models/anneal-base"`
		}
		return s.ok("POST", acme+"/deployments?deploymentId=d",
			`{"baseModel": "accounts/default/models/anneal-base", `+set+`}`)
	}
	s.readyRows("rows", domain.FormatRL, `{"messages": [{"role": "user", "content": "a"}]}`)
	s.evaluatorOf("e")
	return s.ok("POST", acme+"/reinforcementFineTuningJobs?reinforcementFineTuningJobId=j", `{"dataset": `+
		`"accounts/acme/datasets/rows", "evaluator": "accounts/acme/evaluators/e", "trainingConfig": {"baseModel": `+
		`"accounts/default/models/anneal-base"}, `+set+`}`)
}

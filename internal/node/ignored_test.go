package node

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/inert"
	"anneal/engines/external"
	"anneal/engines/torch"
)

// requestFields maps each field that engines may ignore to the fields of API requests that set it.
var requestFields = map[string][]string{
	"CompletionRequest.Prediction":  {"createCompletion prediction", "createChatCompletion prediction"},
	"CompletionRequest.Speculation": {"createCompletion speculation", "createChatCompletion speculation"},
	"SpeculationMode.NgramLength":   {"deployments ngramSpeculationLength", "deploymentShapes ngramSpeculationLength"},
	"SpeculationMode.Tokens":        {"deployments draftTokenCount", "deploymentShapes draftTokenCount"},
	"ModelFiles.ContextLength":      {"deployments maxContextLength", "deploymentShapes maxContextLength"},
	"ModelFiles.LongPrompts":        {"deployments autoTune.longPrompt"},
	"Rollouts.ChunkSize":            {"reinforcementFineTuningJobs chunkSize"},
	"Rollouts.MaxReplicas":          {"reinforcementFineTuningJobs maxInferenceReplicaCount"},
	"Rollouts.MaxConcurrent":        {"reinforcementFineTuningJobs maxConcurrentRollouts"},
	"Rollouts.MaxStaleness":         {"reinforcementFineTuningJobs maxStaleness"},
}

// TestIgnoredFieldsAreWarnedOf checks that the table of inert fields has the fields that each engine
// ignores, and no others.
func TestIgnoredFieldsAreWarnedOf(t *testing.T) {
	want := map[string][]string{}
	for _, name := range external.Presets() {
		want[name] = external.Ignored(name)
	}
	want[torchTrainer] = torch.Ignored()
	found := map[string][]string{}
	for _, f := range inert.Table {
		if f.When == nil {
			continue
		}
		for _, engine := range f.When.Engines {
			require.Contains(t, want, engine, f.Path)
			for _, request := range f.Requests {
				found[engine] = append(found[engine], request+" "+f.Path)
			}
		}
	}
	for engine, ignored := range want {
		var fields []string
		for _, name := range ignored {
			require.Contains(t, requestFields, name, "name the field of requests that sets it")
			fields = append(fields, requestFields[name]...)
		}
		require.ElementsMatch(t, fields, found[engine], engine)
	}
	require.True(t, slices.Contains(found["llama.cpp"], "deployments ngramSpeculationLength"))
}

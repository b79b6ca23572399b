package coordinator_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/simulated"
	"anneal/internal/testutil"
)

// TestEngineReceivesTheDraftModel checks that a replica loads the files of the deployment's draft
// model, and reserves its part of the memory.
func TestEngineReceivesTheDraftModel(t *testing.T) {
	c := startWithInputs(t)
	drafter := "accounts/acme/models/draft"
	n := c.put("models/acme/draft/config.json", []byte(`{"small":true}`))
	c.do(domain.Intend(domain.Models, domain.Name(drafter), domain.RegisterModel{
		ModelSpec:     domain.ModelSpec{Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 100, ContextLength: 512},
		Files:         domain.Files{Prefix: "models/acme/draft/", Sizes: map[string]int64{"config.json": n}}}))
	engine := simulated.New(simulated.Options{})
	count := &counted{Completer: engine.Completer}
	engine.Completer = count
	c.agent("n1", engine)
	c.do(domain.Intend(domain.Deployments, deploymentName, domain.CreateDeployment{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: string(modelName), MinReplicaCount: 1, DraftModel: &drafter, DraftTokenCount: 4}}))
	c.serving(c.placeReplica("n1").ID)
	files := count.files.Load()
	require.Equal(t, 4, files.Speculation.Tokens)
	config := testutil.ReadFile(t, filepath.Join(files.DraftDir, "config.json"))
	require.Equal(t, `{"small":true}`, string(config))
	require.NotEqual(t, files.Dir, files.DraftDir)
	require.EqualValues(t, 128<<20, files.DraftMemoryBytes)
}

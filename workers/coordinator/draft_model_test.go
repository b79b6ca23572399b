package coordinator_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/simulated"
)

// TestEngineReceivesTheDraftModel checks that a replica loads the files of the deployment's draft
// model, and reserves its part of the memory.
func TestEngineReceivesTheDraftModel(t *testing.T) {
	c := start(t)
	c.createInputs()
	drafter := "accounts/acme/models/draft"
	n, err := c.blobs.Put(t.Context(), "models/acme/draft/config.json", strings.NewReader(`{"small":true}`))
	require.NoError(t, err)
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
	config, err := os.ReadFile(filepath.Join(files.DraftDir, "config.json"))
	require.NoError(t, err)
	require.Equal(t, `{"small":true}`, string(config))
	require.NotEqual(t, files.Dir, files.DraftDir)
	require.EqualValues(t, 128<<20, files.DraftMemoryBytes)
}

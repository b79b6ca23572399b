package coordinator_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
)

// flip flips one bit of a stored file; at is the offset of the bit's byte.
func (c *cluster) flip(key string, at int) {
	path := filepath.Join(c.bucket, filepath.FromSlash(key))
	content, err := os.ReadFile(path)
	require.NoError(c, err)
	content[at] ^= 1
	require.NoError(c, os.WriteFile(path, content, 0o600))
}

// TestDamagedRows checks that a job whose rows are damaged fails with the name of the file, without
// another attempt and without training on other rows.
func TestDamagedRows(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.flip("datasets/acme/rows/1/rows.jsonl", 40)
	trained := 0
	c.agent("n1", recordFirst(&trained))
	c.submit()
	c.place("n1")
	life := c.reaches(domain.JobFailedState)
	require.Equal(t, domain.DataLoss.String(), life.Status.Code)
	require.Contains(t, life.Status.Message, "file rows.jsonl is damaged in the file store")
	require.Contains(t, life.Status.Message, "upload the file again")
	require.Zero(t, trained)
}

// TestDamagedWeights checks that a replica whose weights are damaged fails with the damage as
// reason, not with an error of the engine.
func TestDamagedWeights(t *testing.T) {
	c := start(t)
	c.createInputs()
	c.flip("models/acme/base/model.safetensors", 8)
	first := 0
	c.agent("n1", recordFirst(&first))
	c.deploy("n1")
	view := c.until("the replica is removed", func(v *projections.View) bool {
		row, _ := v.Deployments.Get(deploymentName)
		return row.State.ReplicaSeq == 1 && len(row.State.Replicas) == 0
	})
	row, _ := view.Deployments.Get(deploymentName)
	require.Equal(t, 1, row.State.Failures)
	require.Contains(t, row.State.Status.Message,
		"download the model: file model.safetensors is damaged in the file store")
}

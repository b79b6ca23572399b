package coordinator_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

// flip flips one bit of a stored file; at is the offset of the bit's byte.
func (c *cluster) flip(key string, at int) {
	path := filepath.Join(c.bucket, filepath.FromSlash(key))
	content := testutil.ReadFile(c, path)
	content[at] ^= 1
	require.NoError(c, os.WriteFile(path, content, 0o600))
}

// TestDamagedRows checks that a job whose rows are damaged fails with the name of the file, without
// another attempt and without training on other rows.
func TestDamagedRows(t *testing.T) {
	c := startWithInputs(t)
	c.flip("datasets/acme/rows/1/rows.jsonl", 40)
	trained := 0
	c.agent("n1", recordFirst(&trained))
	c.startJob("n1")
	life := c.reaches(domain.JobFailedState)
	require.Equal(t, domain.DataLoss.String(), life.Status.Code)
	require.Contains(t, life.Status.Message, "file rows.jsonl is damaged in the file store")
	require.Contains(t, life.Status.Message, "upload the file again")
	require.Zero(t, trained)
}

// TestDamagedWeights checks that a replica whose weights are damaged fails with the damage as
// reason, not with an error of the engine.
func TestDamagedWeights(t *testing.T) {
	c := startWithInputs(t)
	c.flip("models/acme/base/model.safetensors", 8)
	first := 0
	c.agent("n1", recordFirst(&first))
	c.deploy("n1")
	d := c.untilDeployment("the replica is removed", func(d domain.Deployment) bool {
		return d.ReplicaSeq == 1 && len(d.Replicas) == 0
	})
	require.Equal(t, 1, d.Failures)
	require.Contains(t, d.Status.Message,
		"download the model: file model.safetensors is damaged in the file store")
}

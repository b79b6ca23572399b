package coordinator_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/projections/live"
)

// shipped registers the model of the embedded engine as the base model of jobs.
func (c *cluster) shipped() {
	dir := c.TempDir()
	require.NoError(c, embedded.WriteBase(dir))
	files := domain.Files{Prefix: "models/acme/shipped/", Sizes: map[string]int64{}}
	entries := testutil.ReadDir(c, dir)
	for _, entry := range entries {
		data, err := os.ReadFile(filepath.Join(dir, entry.Name()))
		require.NoError(c, err)
		files.Sizes[entry.Name()] = c.put(files.Prefix+entry.Name(), data)
	}
	c.do(domain.Intend(domain.Models, modelName, domain.RegisterModel{ModelSpec: domain.ModelSpec{
		Kind: domain.BaseModel},
		ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 840_000, ContextLength: 512}, Files: files}))
}

// rows stores the lines as a READY dataset and returns its name.
func (c *cluster) rows(id, shape string, lines ...string) string {
	dataset, directory := domain.NewName("acme", domain.Datasets.Collection, id), "datasets/acme/"+id+"/1/"
	size := c.put(directory+"rows.jsonl", []byte(strings.Join(lines, "\n")+"\n"))
	files := domain.Files{Prefix: directory, Sizes: map[string]int64{"rows.jsonl": size}}
	c.do(domain.Intend(domain.Datasets, dataset, domain.CreateDataset{}))
	c.do(domain.Intend(domain.Datasets, dataset, domain.UploadDataset{Upload: 1, Files: files}))
	c.do(domain.Intend(domain.Datasets, dataset, domain.AcceptDataset{Upload: 1, DatasetStats: domain.DatasetStats{
		Shape: shape, ExampleCount: domain.Count(len(lines))}}))
	return string(dataset)
}

// queue creates and queues a job.
func (c *cluster) queue(name domain.Name, create domain.Intent) {
	c.do(create, domain.IntendJob(name, domain.StartValidation{}), domain.IntendJob(name, domain.QueueJob{}))
}

// begin queues a job and starts its first attempt on n1.
func (c *cluster) begin(name domain.Name, create domain.Intent) {
	c.queue(name, create)
	c.startAttempt(name, domain.StartJob{Attempt: 1})
}

// startAttempt starts an attempt of a queued job on n1.
func (c *cluster) startAttempt(name domain.Name, start domain.StartJob) {
	start.Nodes, start.Resources = []domain.Name{nodeName("n1")}, domain.Resources{CPUMilli: 500, MemoryMiB: 64}
	c.do(domain.Intend(domain.Nodes, nodeName("n1"), domain.PlaceAllocation{Allocation: domain.Allocation{
		ID: domain.AllocationID(name, start.Attempt), For: name, Attempt: start.Attempt, Resources: start.Resources}}),
		domain.IntendJob(name, start))
}

// latest returns the newest metric row of a job.
func (c *cluster) latest(name domain.Name) live.MetricRow {
	row, ok := c.world.View().Live.Latest(name)
	require.True(c, ok)
	return row
}

// tuned waits until the output model with the given ID is registered, and returns the model.
func (c *cluster) tuned(id string) domain.Model {
	name := domain.NewName("acme", domain.Models.Collection, id)
	view := c.until("the model "+id+" is created", func(v *projections.View) bool {
		row, ok := v.Models.Get(name)
		return ok && row.State.State == domain.ModelReady
	})
	row, _ := view.Models.Get(name)
	return row.State
}

// TestPreferenceJobTrains checks that a preference job runs on an agent with the embedded engine,
// from the job's settings to the registered model.
func TestPreferenceJobTrains(t *testing.T) {
	c := start(t)
	c.shipped()
	c.agent("n1", embedded.New(embedded.Options{Parallelism: 1}))
	c.ready("n1")
	var lines []string
	for i := range 12 {
		lines = append(lines, fmt.Sprintf(
			`{"input":{"messages":[{"role":"user","content":"Name %d."}]},`+
				`"preferred_output":[{"role":"assistant","content":"yes %d"}],`+
				`"non_preferred_output":[{"role":"assistant","content":"no %d"}]}`, i, i, i))
	}
	name := domain.NewName("acme", domain.DPOJobs.Collection, "prefer")
	c.begin(name, domain.Intend(domain.DPOJobs, name, domain.CreateDPOJob{ID: "prefer",
		DPOSpec: domain.DPOSpec{
			Dataset:        c.rows("pairs", domain.ShapePreference, lines...),
			LossConfig:     &domain.LossConfig{DPO: &domain.DPOLoss{Beta: 0.3}},
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), Epochs: 4}}}))
	model := c.tuned("prefer")
	require.Equal(t, domain.PEFTAddon, model.Kind)
	row := c.latest(name)
	require.Equal(t, row.Steps, row.Step)
	require.Positive(t, row.Values["train/margin"])
	require.Equal(t, 1.0, row.Values["train/accuracy"])
}

// TestTrainerStepTrains checks that a train step trains on scored samples with the job's reward
// weights.
func TestTrainerStepTrains(t *testing.T) {
	c := start(t)
	c.shipped()
	c.agent("n1", embedded.New(embedded.Options{Parallelism: 1}))
	c.ready("n1")
	var lines []string
	for i := range 12 {
		said := func(text string, good, brief float64) string {
			return fmt.Sprintf(`{"messages":[{"role":"user","content":"Name %d."},{"role":"assistant","content":%q}],`+
				`"good":%g,"brief":%g}`, i, text, good, brief)
		}
		lines = append(lines, `{"samples":[`+said("yes", 1, 0)+","+said("no", 0, 1)+`]}`)
	}
	name := domain.NewName("acme", domain.TrainerJobs.Collection, "step")
	c.begin(name, domain.Intend(domain.TrainerJobs, name, domain.CreateTrainerJob{
		ID: "step", TrainerSpec: domain.TrainerSpec{
			Dataset:    c.rows("scored", domain.ShapeSamples, lines...),
			LossConfig: &domain.LossConfig{Method: domain.LossDAPO}, RewardWeights: []string{"good=1"},
			TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName), Epochs: 4}}}))
	require.Equal(t, domain.PEFTAddon, c.tuned("step").Kind)
	row := c.latest(name)
	require.Equal(t, row.Steps, row.Step)
	require.InDelta(t, 0.5, row.Values["reward/mean"], 1e-9, "with the weight of good only")
	require.NotContains(t, row.Values, "train/kl", "DAPO has no KL divergence")
	require.Contains(t, row.Values, "train/clipped")
}

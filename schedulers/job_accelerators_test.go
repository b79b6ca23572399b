package schedulers_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/projections"
	"anneal/schedulers"
)

// setAccelerators returns the intent that sets the table of an account.
func setAccelerators(account string, rows ...domain.JobAcceleratorRow) domain.Intent {
	return domain.Intend(domain.Accounts, domain.NewName("", domain.Accounts.Collection, account),
		domain.SetJobAccelerators{Rows: rows})
}

// acceleratorsOf returns the accelerators that a running job holds on each of its nodes.
func (s *harness) acceleratorsOf(id string) map[string]int {
	s.t.Helper()
	row, ok := projections.TableOf(s.world.View(), domain.SupervisedJobs).Get(jobName(id))
	require.True(s.t, ok)
	require.Equal(s.t, domain.JobRunningState, row.State.State, row.State.Status.Message)
	for _, name := range row.State.Life().Nodes {
		node, _ := s.world.View().Nodes.Get(name)
		held := node.State.Allocations[domain.AllocationID(row.Name, row.State.Attempt)].Resources
		require.Equal(s.t, row.State.Resources, held)
	}
	return row.State.Resources.Accelerators
}

// TestJobsGetTheAcceleratorsOfTheTable checks that the operator's table decides for the next
// attempt of each job, that a table of the account replaces that of all accounts, that running jobs
// keep what they have, and that the events alone give the same state.
func TestJobsGetTheAcceleratorsOfTheTable(t *testing.T) {
	s := newHarness(t)
	size := domain.ModelMetadata{ParameterCount: 8e9, ContextLength: 512, Precision: "BF16"}
	s.do(account(), domain.Intend(domain.Accounts, "accounts/system", domain.CreateAccount{}))
	s.do(onModel("base", domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.BaseModel}, ModelMetadata: size,
		Files: domain.Files{Prefix: "models/base/"}}))
	for _, intent := range dataset("rows", domain.ShapeChat, 3) {
		s.do(intent)
	}
	s.given(node("n1", domain.PoolTraining, 16, map[string]int{h100: 8}),
		node("n2", domain.PoolTraining, 16, map[string]int{h100: 8, l4: 4}))
	s.pending(1, "estimated")
	s.execute(schedulers.Jobs{})
	require.Equal(t, map[string]int{h100: 1}, s.acceleratorsOf("estimated"))

	s.comment("the table of all accounts")
	s.given(setAccelerators(domain.System, domain.JobAcceleratorRow{MaxParameterCount: 8e9, AcceleratorCount: 3}))
	s.pending(2, "gang")
	s.execute(schedulers.Jobs{})
	require.Equal(t, map[string]int{h100: 3}, s.acceleratorsOf("gang"), "on each node")

	s.comment("the table of the account")
	s.given(setAccelerators("acme", domain.JobAcceleratorRow{MaxParameterCount: 8e9, AcceleratorType: l4,
		AcceleratorCount: 2}))
	s.pending(1, "other-type")
	s.execute(schedulers.Jobs{})
	require.Equal(t, map[string]int{l4: 2}, s.acceleratorsOf("other-type"))

	s.comment("more than a node has: the job waits, and a smaller table lets it start")
	s.given(setAccelerators("acme", domain.JobAcceleratorRow{AcceleratorType: l4, AcceleratorCount: 5}))
	s.pending(1, "waits")
	s.execute(schedulers.Jobs{})
	s.given(setAccelerators("acme", domain.JobAcceleratorRow{AcceleratorCount: 0}))
	s.execute(schedulers.Jobs{})
	require.Empty(t, s.acceleratorsOf("waits"))

	s.comment("without a table of the account, that of all accounts applies again")
	s.given(setAccelerators("acme"))
	s.pending(1, "again")
	s.execute(schedulers.Jobs{})
	require.Equal(t, map[string]int{h100: 3}, s.acceleratorsOf("again"))
	require.Equal(t, map[string]int{h100: 3}, s.acceleratorsOf("gang"), "running jobs keep their accelerators")
	s.compare("jobs_accelerators")

	replayed := projections.NewWorld()
	for e, err := range s.log.Read(t.Context(), "events.>", 0) {
		require.NoError(t, err)
		require.NoError(t, replayed.Apply(e))
	}
	before, err := s.world.View().Digest()
	require.NoError(t, err)
	after, err := replayed.View().Digest()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

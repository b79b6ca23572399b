package main_test

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"
)

// rollouts returns the rollouts of the job without their times; nil for a kind of job without
// rollouts.
func (k killableJob) rollouts(user caller) []object {
	user.t.Helper()
	if k.collection != "reinforcementFineTuningJobs" {
		return nil
	}
	all := user.list(k.path()+"/rollouts", "rollouts")
	seen := map[any]bool{}
	for _, one := range all {
		require.False(user.t, seen[one["name"]], "%v is listed twice", one["name"])
		seen[one["name"]] = true
		delete(one, "createTime")
	}
	require.Len(user.t, all, 3*10*6, "each of 3 epochs has 6 responses to each of 10 rows")
	return all
}

// TestRolloutsSurviveAKilledServer kills the control plane while a reinforcement job runs, first
// before its first checkpoint and then after it. The job's worker continues, and the rollouts equal
// those of an uninterrupted training. They are deleted with the job.
func TestRolloutsSurviveAKilledServer(t *testing.T) {
	t.Parallel()
	kind := killableJobs["reinforcement"]
	f := newFleet(t)
	spec, user := kind.prepare(t, f), f.user()
	f.work("calm")
	kind.create(user, spec)
	user.until(kind.path(), "state", "JOB_STATE_COMPLETED")
	want := kind.rollouts(user)
	kind.remove(user)
	status, _, err := user.do(http.MethodGet, kind.path()+"/rollouts", nil)
	require.NoError(t, err)
	require.Equal(t, http.StatusNotFound, status)
	kind.create(user, spec)
	for _, collection := range []string{"rollouts", "checkpoints"} {
		eventually(t, "there are "+collection, func() bool {
			return len(user.list(kind.path()+"/"+collection, collection)) > 0
		})
		f.kill()
		f.start()
	}
	user.until(kind.path(), "state", "JOB_STATE_COMPLETED")
	require.Equal(t, want, kind.rollouts(user))
	require.Zero(t, f.workers["calm"].end())
	f.checkEvents()
}

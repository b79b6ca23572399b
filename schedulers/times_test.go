package schedulers_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
	"anneal/schedulers"
)

// TestTimesAreKept simulates six weeks of a cluster and checks that deployments and jobs end at
// their expireTime, purgeTime or deadline.
func TestTimesAreKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		log, world := eventlog.NewMemory(), projections.NewWorld()
		go follow(ctx, log, world, rand.New(rand.NewPCG(1, 1)))
		for _, s := range []schedulers.Scheduler{schedulers.Jobs{}, schedulers.Replicas{}, schedulers.Allocations{},
			schedulers.Expiry{}} {
			go func() { _ = schedulers.Run(ctx, log, world, twice{t, s}, slog.New(slog.DiscardHandler)) }()
		}
		do := func(intents ...domain.Intent) error {
			for _, intent := range intents {
				change, err := eventlog.Do(ctx, log, world, eventlog.Request{Time: time.Now().UTC(), Actor: "test"},
					intent)
				if err == nil {
					err = world.WaitFor(ctx, change.Position())
				}
				if err != nil {
					return err
				}
			}
			return nil
		}
		began := time.Now().UTC()
		at := func(d time.Duration) *time.Time { due := began.Add(d); return &due }
		until := func(d time.Duration) { // waits until shortly after d
			time.Sleep(time.Until(began.Add(d + time.Minute)))
			synctest.Wait()
		}
		deploymentIs := func(id string) (domain.Deployment, string) {
			row, ok := world.View().Deployments.Get(deploymentName(id))
			if !ok {
				return domain.Deployment{}, "(none)"
			}
			return row.State, row.State.State
		}
		requireDeployments := func(states map[string]string) {
			t.Helper()
			for id, want := range states {
				_, is := deploymentIs(id)
				require.Equal(t, want, is, "%s after %s", id, time.Since(began))
			}
		}
		jobIs := func(id string) domain.JobLife {
			row, ok := projections.TableOf(world.View(), domain.SupervisedJobs).Get(jobName(id))
			require.True(t, ok)
			return row.State.JobLife
		}
		timed := func(id string, deadline time.Duration) domain.Intent {
			return domain.Intend(domain.SupervisedJobs, jobName(id),
				domain.CreateSupervisedJob{ID: id, Deadline: at(deadline),
					SupervisedSpec: domain.SupervisedSpec{Dataset: string(datasetName("rows")),
						TrainingConfig: domain.TrainingConfig{BaseModel: string(modelName("base"))}}})
		}
		for _, intent := range append([]domain.Intent{account(), baseModel("base"), node("n1", "", 4, nil)},
			dataset("rows", domain.ShapeChat, 3)...) {
			require.NoError(t, do(intent))
		}
		for _, intent := range []domain.Intent{deployment("never", 0, 1, nil),
			deployment("purged", 1, 1, func(d *domain.DeploymentSpec) { d.ExpireTime = at(time.Hour) }),
			deployment("undeleted", 0, 1, func(d *domain.DeploymentSpec) { d.ExpireTime = at(2 * time.Hour) }),
			deployment("sealed", 0, 1, func(d *domain.DeploymentSpec) {
				d.ExpireTime, d.DirectRouteAPIKeys = at(time.Hour), []domain.Sealed{{KeyID: "k"}}
			}),
			timed("running", 3*time.Hour), job("patient", nil)} {
			require.NoError(t, do(intent))
		}

		until(0)
		requireDeployments(map[string]string{"purged": domain.DeploymentCreatingState,
			"undeleted": domain.DeploymentReadyState})
		require.Equal(t, domain.JobRunningState, jobIs("running").State)
		require.NoError(t, do(timed("paused", 3*time.Hour), onJob("patient", domain.PauseJob{Reason: "by its user"})))
		require.NoError(t, do(onJob("paused", domain.PauseJob{Reason: "by its user"})))

		until(time.Hour)
		requireDeployments(map[string]string{"never": domain.DeploymentReadyState,
			"purged": domain.DeploymentDeletedState,
			"sealed": domain.DeploymentDeletedState, "undeleted": domain.DeploymentReadyState})
		purged, _ := deploymentIs("purged")
		require.WithinDuration(t, began.Add(time.Hour), *purged.DeleteTime, time.Minute)
		require.Equal(t, schedulers.KeepDeleted, purged.PurgeTime.Sub(*purged.DeleteTime))
		require.Empty(t, purged.Replicas)

		until(2 * time.Hour)
		requireDeployments(map[string]string{"undeleted": domain.DeploymentDeletedState})
		require.NoError(t, do(onDeployment("undeleted", domain.UndeleteDeployment{})))
		require.Equal(t, domain.JobRunningState, jobIs("running").State)
		require.Equal(t, domain.JobPausedState, jobIs("paused").State)

		until(3 * time.Hour)
		for _, id := range []string{"running", "paused"} {
			require.Equal(t, domain.JobExpiredState, jobIs(id).State, id)
			require.Equal(t, "DEADLINE_EXCEEDED", jobIs(id).Status.Code, id)
		}
		require.Equal(t, domain.JobPausedState, jobIs("patient").State)
		held, _ := world.View().Nodes.Get(nodeName("n1"))
		require.Empty(t, held.State.Allocations, "what an expired job and a deleted deployment held is free")
		require.ErrorContains(t, do(onJob("running", domain.ResumeJob{})), "EXPIRED")

		until(schedulers.KeepDeleted)
		requireDeployments(map[string]string{"purged": domain.DeploymentDeletedState})
		require.Error(t, do(onDeployment("purged", domain.PurgeDeployment{})), "its purgeTime has not passed yet")
		until(time.Hour + schedulers.KeepDeleted + time.Minute)
		requireDeployments(map[string]string{"purged": "(none)", "sealed": "(none)",
			"undeleted": domain.DeploymentReadyState, "never": domain.DeploymentReadyState})
		require.NoError(t, do(deployment("purged", 0, 1, nil)), "its ID is free again")

		until(45 * 24 * time.Hour)
		requireDeployments(map[string]string{"purged": domain.DeploymentReadyState,
			"undeleted": domain.DeploymentReadyState, "never": domain.DeploymentReadyState})
	})
}

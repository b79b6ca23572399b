package api

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
	"anneal/engines"
)

func hotWeights(step int) domain.HotWeights {
	return domain.HotWeights{Job: "accounts/acme/rlorTrainerJobs/j", TrainStep: 1, Step: step, Adapter: true, Position: 7,
		Made:  epoch.Add(time.Duration(step) * time.Minute),
		Files: domain.Files{Prefix: "j/" + string(rune('0'+step)) + "/", Sizes: map[string]int64{"adapter_config.json": 2}}}
}

// swap records that a deployment serves the weights w, and that all replicas have loaded them.
func (s *harness) swap(name domain.Name, w domain.HotWeights) {
	s.Helper()
	row, _ := s.world.View().Deployments.Get(name)
	var replicas []string
	for _, r := range row.State.Ordered() {
		replicas = append(replicas, r.ID)
	}
	s.deployment(name, domain.OfferWeights{HotWeights: w})
	s.deployment(name, domain.SwapWeights{ID: w.ID(), Replicas: replicas})
}

// TestGatewayRequestsServedWeights checks that the gateway requests the weights that the log
// records as served and, when a replica has already replaced these weights, the weights that
// replaced them.
func TestGatewayRequestsServedWeights(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deployForAddons("d", func(d *domain.DeploymentSpec) { d.EnableHotLoad, d.EnableAddons = true, false })
	const body = `{"model": "accounts/acme/deployments/d", "prompt": "a b"}`
	requireWeights := func(want ...string) {
		t.Helper()
		require.Equal(t, "a b ", textOf(t, s.call("POST", "/inference/v1/completions", "inference", body)))
		require.Equal(t, want, s.takeAddons())
	}
	requireWeights("")
	one, two := hotWeights(1), hotWeights(2)
	s.swap(name, one)
	requireWeights(one.ID())
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if req.Addon == one.ID() {
			s.swap(name, two)
			return engines.Usage{}, engines.ErrAddonNotLoaded(req.Addon)
		}
		return echo(ctx, r, req, emit)
	}
	requireWeights(one.ID(), two.ID())
	requireWeights(two.ID())
	s.deployment(name, domain.WithdrawWeights{ID: two.ID(), Reason: "its job is deleted"})
	requireWeights("")
}

func TestDeploymentShowsWeights(t *testing.T) {
	s := newHarness(t, request.Limits{})
	name := s.deployForAddons("d", func(d *domain.DeploymentSpec) { d.EnableHotLoad, d.EnableAddons = true, false })
	shown := func() map[string]any {
		return s.call("GET", "/v1/accounts/acme/deployments/d", "admin", "").json(t)["hotLoad"].(map[string]any)
	}
	require.Equal(t, map[string]any{"status": map[string]any{"code": "OK", "message": ""}}, shown())
	s.swap(name, hotWeights(1))
	served := shown()["served"].(map[string]any)
	require.Equal(t, map[string]any{"job": "accounts/acme/rlorTrainerJobs/j", "trainStep": 1.0, "step": 1.0,
		"adapter": true, "position": 7.0,
		"madeTime": "2030-01-02T03:05:05Z", "swapTime": served["swapTime"]}, served)
	s.deployment(name, domain.OfferWeights{HotWeights: hotWeights(2)})
	require.Equal(t, 2.0, shown()["loading"].(map[string]any)["step"])
	s.deployment(name, domain.RefuseWeights{HotWeights: hotWeights(2),
		Status: domain.Status{Code: "FAILED_PRECONDITION", Message: "another base"}})
	require.Equal(t, 2.0, shown()["refused"].(map[string]any)["step"])
	require.Equal(t, "another base", shown()["status"].(map[string]any)["message"])
	require.Equal(t, 1.0, shown()["served"].(map[string]any)["step"])
	require.NotContains(t, shown(), "loading")
}

// TestJobWarnsWithoutHotLoad checks that a job that names a deployment without enableHotLoad is
// created with a warning.
func TestJobWarnsWithoutHotLoad(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deployForAddons("deaf")
	s.deployForAddons("open", func(d *domain.DeploymentSpec) { d.EnableHotLoad = true })
	for deployment, warned := range map[string]bool{"deaf": true, "open": false} {
		a := s.call("POST", "/v1/accounts/acme/rlorTrainerJobs?rlorTrainerJobId=j-"+deployment, "admin",
			`{"keepAlive": true, "rolloutDeploymentName": "accounts/acme/deployments/`+deployment+
				`", "trainingConfig": {"baseModel": "`+publicBase+`", "outputModel": "o-`+deployment+`"}}`)
		require.Equal(t, 200, a.status, "%s", a.body)
		if warned {
			require.Contains(t, a.header.Get("anneal-warning"), "enableHotLoad")
		} else {
			require.Empty(t, a.header.Get("anneal-warning"))
		}
	}
}

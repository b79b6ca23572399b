package api

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/domain"
	"anneal/engines"
)

const publicBase = "accounts/default/models/anneal-base"

// addonFor creates an addon of the public model, loads it into a deployment of acme, applies the
// commands to the deployed model, and returns the name of the addon.
func (s *harness) addonFor(id, deployment string, commands ...domain.Command[domain.DeployedModel]) string {
	s.Helper()
	model := domain.NewName("acme", domain.Models.Collection, id)
	if _, ok := s.world.View().Models.Get(model); !ok {
		s.do(domain.Intend(domain.Models, model, domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
			BaseModel: publicBase}, Files: domain.Files{Prefix: "models/" + id + "/"}}))
	}
	name := domain.NewName("acme", domain.DeployedModels.Collection, id+"-"+deployment)
	commands = append([]domain.Command[domain.DeployedModel]{
		domain.CreateDeployedModel{DeployedModelSpec: domain.DeployedModelSpec{
			Model: string(model), Deployment: string(domain.NewName("acme", domain.Deployments.Collection, deployment))}}},
		commands...)
	for _, command := range commands {
		s.addon(name, command)
	}
	row, _ := s.world.View().DeployedModels.Get(name)
	return routing.AddonID(row)
}

func (s *harness) addon(name domain.Name, command domain.Command[domain.DeployedModel]) {
	s.Helper()
	s.do(domain.Intend(domain.DeployedModels, name, command))
}

func (s *harness) deployForAddons(id string, change ...func(*domain.DeploymentSpec)) domain.Name {
	s.Helper()
	spec := domain.DeploymentSpec{BaseModel: publicBase, EnableAddons: true, MinReplicaCount: 1}
	for _, one := range change {
		one(&spec)
	}
	name := domain.NewName("acme", domain.Deployments.Collection, id)
	s.deployment(name, domain.CreateDeployment{DeploymentSpec: spec})
	s.serve(name)
	return name
}

// takeAddons returns the addons that requests named which replicas received since the last call.
func (s *harness) takeAddons() []string {
	s.replicas.mu.Lock()
	defer s.replicas.mu.Unlock()
	var all []string
	for _, req := range s.replicas.reqs {
		all = append(all, req.Addon)
	}
	s.replicas.reqs = nil
	return all
}

func TestAddonRouting(t *testing.T) {
	loaded := domain.MarkModelDeployed{}
	byDefault := func(model, deployment string) domain.Command[domain.DeployedModel] {
		return domain.UpdateDeployedModel{DeployedModelSpec: domain.DeployedModelSpec{Default: true,
			Model: "accounts/acme/models/" + model, Deployment: "accounts/acme/deployments/" + deployment}}
	}
	s := newHarness(t, request.Limits{})
	s.deployForAddons("d1")
	s.deployForAddons("d2")
	s.deployForAddons("latest", func(d *domain.DeploymentSpec) { d.EnableHotReloadLatestAddon = true })
	s.deployForAddons("chosen")
	s.addonFor("polite", "d1") // still DEPLOYING
	polite2 := s.addonFor("polite", "d2", loaded)
	newest := s.addonFor("newest", "latest", loaded)
	chosen := s.addonFor("chosen", "chosen", byDefault("chosen", "chosen"), loaded)
	s.addonFor("leaving", "d1", loaded, domain.UndeployModel{Reason: "unloaded by its user"})
	s.addonFor("broken", "d1",
		domain.FailDeployedModel{Status: domain.Status{Code: "FAILED_PRECONDITION", Message: "it has another base"}})
	alone := s.deployForAddons("alone", func(d *domain.DeploymentSpec) { d.BaseModel = "accounts/acme/models/alone" })
	s.addonFor("alone", "d1", loaded)

	for model, want := range map[string]struct{ addon, deployment string }{
		"accounts/acme/models/polite":                              {polite2, "d2"}, // the addon is DEPLOYED in d2
		"accounts/acme/models/polite#accounts/acme/deployments/d2": {polite2, "d2"},
		"acme/polite#acme/d2":                                      {polite2, "d2"},
		"accounts/acme/deployments/d2":                             {"", "d2"},
		publicBase + "#acme/d2":                                    {"", "d2"},
		"accounts/acme/deployments/latest":                         {newest, "latest"},
		publicBase + "#acme/latest":                                {newest, "latest"},
		"acme/newest#acme/latest":                                  {newest, "latest"},
		"accounts/acme/deployments/chosen":                         {chosen, "chosen"},
		publicBase + "#acme/chosen":                                {"", "chosen"},
		// a deployment of the model is preferred to deployments that load the model as an addon
		"accounts/acme/models/alone": {"", alone.ID()},
	} {
		s.takeAddons()
		a := s.call("POST", "/inference/v1/completions", "inference",
			fmt.Sprintf(`{"model": %q, "prompt": "a b", "perf_metrics_in_response": true}`, model))
		require.Equal(t, 200, a.status, "%s: %s", model, a.body)
		require.Equal(t, []string{want.addon}, s.takeAddons(), model)
		require.Equal(t, "accounts/acme/deployments/"+want.deployment,
			a.json(t)["perf_metrics"].(map[string]any)["deployment"], model)
	}
	for model, want := range map[string]struct {
		status  int
		message string
	}{
		"acme/polite#acme/latest":     {404, "does not serve"},
		"acme/leaving#acme/d1":        {404, "UNDEPLOYING"},
		"accounts/acme/models/broken": {404, "no live deployment"},
		"acme/broken#acme/d1":         {404, "it has another base"},
	} {
		a := s.call("POST", "/inference/v1/completions", "inference", fmt.Sprintf(`{"model": %q, "prompt": "a b"}`, model))
		require.Equal(t, want.status, a.status, "%s: %s", model, a.body)
		require.Contains(t, string(a.body), want.message)
	}
	require.Equal(t, http.StatusForbidden,
		s.call("POST", "/inference/v1/completions", "other", `{"model": "acme/polite#acme/d2", "prompt": "a"}`).status)
}

// TestRequestWaitsForAddon checks that a request for an addon waits while the addon is being
// loaded, and gets an error when loading fails.
func TestRequestWaitsForAddon(t *testing.T) {
	for name, end := range map[string]struct {
		command domain.Command[domain.DeployedModel]
		status  int
		message string
	}{
		"it comes": {domain.MarkModelDeployed{}, 200, `"a b "`},
		"it fails": {domain.FailDeployedModel{Status: domain.Status{Code: "FAILED_PRECONDITION",
			Message: "it has another base"}}, 503, "it has another base"},
		"it is taken out": {domain.UndeployModel{Reason: "unloaded by its user"}, 404, "no longer loaded"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			s.deployForAddons("d")
			s.addonFor("polite", "d")
			answered := make(chan response, 1)
			go func() {
				answered <- s.call("POST", "/inference/v1/completions", "inference",
					`{"model": "acme/polite#acme/d", "prompt": "a b"}`)
			}()
			require.Eventually(t, func() bool { return s.server.core.Busy.Of("generations of acme") == 1 }, patience,
				time.Millisecond, "the request is under way")
			require.Empty(t, s.takeAddons(), "no replica gets a request before it has loaded the addon")
			s.addon("accounts/acme/deployedModels/polite-d", end.command)
			a := <-answered
			require.Equal(t, end.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), end.message)
		})
	}
	s := newHarness(t, request.Limits{Wake: 20 * time.Millisecond})
	s.deployForAddons("d")
	s.addonFor("polite", "d")
	a := s.call("POST", "/inference/v1/completions", "inference", `{"model": "acme/polite#acme/d", "prompt": "a b"}`)
	require.Equal(t, 503, a.status)
	require.Contains(t, string(a.body), "still loading the addon")
	require.NotEmpty(t, a.header.Get("Retry-After"))
}

// TestReplicaWithoutAddon checks that a request is sent to another replica when the first one has
// lost the addon, and that the error says so when the addon was unloaded during the request.
func TestReplicaWithoutAddon(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.serveReplica(s.deployForAddons("d"))
	id := s.addonFor("polite", "d", domain.MarkModelDeployed{})
	lacking := func(lacks ...string) {
		s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
			emit func(engines.Chunk) error) (engines.Usage, error) {
			if strings.Contains(strings.Join(lacks, " "), r.ID) {
				return engines.Usage{}, engines.ErrAddonNotLoaded(req.Addon)
			}
			return echo(ctx, r, req, emit)
		}
	}
	for _, lacks := range []string{"r1", "r2"} {
		lacking(lacks)
		a := s.call("POST", "/inference/v1/completions", "inference", `{"model": "acme/polite#acme/d", "prompt": "a b"}`)
		require.Equal(t, "a b ", textOf(t, a))
	}
	require.Contains(t, s.takeAddons(), id)
	s.replicas.respond = func(_ context.Context, _ domain.Replica, req engines.CompletionRequest,
		_ func(engines.Chunk) error) (engines.Usage, error) {
		s.addon("accounts/acme/deployedModels/polite-d", domain.UndeployModel{Reason: "unloaded by its user"})
		return engines.Usage{}, engines.ErrAddonNotLoaded(req.Addon)
	}
	a := s.call("POST", "/inference/v1/completions", "inference", `{"model": "acme/polite#acme/d", "prompt": "a b"}`)
	require.Equal(t, 404, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "no longer loaded")
}

// TestLatestAddonServesRequestsInProgress checks that a request that names only the deployment uses
// the newest addon of the deployment, also when the previous addon is unloaded while the request is
// in progress.
func TestLatestAddonServesRequestsInProgress(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.deployForAddons("d", func(d *domain.DeploymentSpec) { d.EnableHotReloadLatestAddon = true })
	older := s.addonFor("older", "d", domain.MarkModelDeployed{})
	newer := ""
	s.replicas.respond = func(ctx context.Context, r domain.Replica, req engines.CompletionRequest,
		emit func(engines.Chunk) error) (engines.Usage, error) {
		if req.Addon == older {
			if newer == "" {
				newer = s.addonFor("newer", "d", domain.MarkModelDeployed{})
				s.addon("accounts/acme/deployedModels/older-d", domain.UndeployModel{Reason: "a newer one took its place"})
			}
			return engines.Usage{}, engines.ErrAddonNotLoaded(req.Addon)
		}
		return echo(ctx, r, req, emit)
	}
	require.Equal(t, "a b ", textOf(t,
		s.call("POST", "/inference/v1/completions", "inference",
			`{"model": "accounts/acme/deployments/d", "prompt": "a b"}`)))
	require.Equal(t, []string{older, newer}, s.takeAddons())
	a := s.call("POST", "/inference/v1/completions", "inference", `{"model": "acme/older#acme/d", "prompt": "a b"}`)
	require.Equal(t, 404, a.status, "a request for the older addon by name fails: %s", a.body)
}

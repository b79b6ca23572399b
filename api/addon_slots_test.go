package api

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestShapeLimitsCachedAddons checks that numLoraDeviceCached of a shape is accepted without a
// warning, and limits the numPeftDeviceCached of deployments with the shape.
func TestShapeLimitsCachedAddons(t *testing.T) {
	s := newHarness(t, request.Limits{})
	made := s.ok(http.MethodPost, acme+"/deploymentShapes", `{"deploymentShapeId": "few", "deploymentShape": `+
		`{"baseModel": "accounts/default/models/anneal-base", "numLoraDeviceCached": 2}}`)
	require.Empty(t, made.header.Values("anneal-warning"))
	require.Equal(t, 2.0, made.json(t)["numLoraDeviceCached"])
	s.deployForAddons("d", func(spec *domain.DeploymentSpec) {
		spec.DeploymentShape = domain.ShapeVersionName("accounts/acme/deploymentShapes/few", "v1")
	})
	for i, want := range []float64{1, 2, 2} {
		id := string(rune('a' + i))
		executeAction(s, []string{"addon", "accounts/acme/models/" + id})
		a := s.loadAddon(id, id, "d", false)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		s.addon(domain.Name("accounts/acme/deployedModels/"+id), domain.MarkModelDeployed{})
		require.Equal(t, want, s.ok(http.MethodGet, acme+"/deployments/d", "").json(t)["numPeftDeviceCached"])
	}
}

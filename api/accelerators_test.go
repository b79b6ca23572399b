package api

import (
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestAcceleratorsOfFleets checks the rule for accelerators through the API: a shape, a deployment
// and a deployment with the shape get the same type and count on each fleet, or the same refusal.
func TestAcceleratorsOfFleets(t *testing.T) {
	const h100 = "VENDOR_A_H100_80GB"
	register := func(devices map[string]int) domain.Intent {
		return domain.Intend(domain.Nodes, "accounts/system/nodes/n1", domain.RegisterNode{
			NodeSpec: domain.NodeSpec{Engines: []string{"train", "complete"},
				Capacity: domain.Resources{CPUMilli: 4000, MemoryMiB: 4096, Accelerators: devices}}})
	}
	for _, c := range []struct {
		name    string
		devices map[string]int // nil: no node is registered
		given   string
		want    any // the type; nil for CPUs
		count   any
		message string
	}{
		{name: "no node", want: domain.DefaultAccelerator, count: 1.0},
		{name: "CPUs", devices: map[string]int{}},
		{name: "CPUs, unspecified", devices: map[string]int{},
			given: `, "acceleratorType": "ACCELERATOR_TYPE_UNSPECIFIED"`},
		{name: "CPUs, counted", devices: map[string]int{}, given: `, "acceleratorCount": 2`,
			message: "acceleratorCount: is 2, but the nodes of this installation have only CPUs"},
		{name: "H100", devices: map[string]int{domain.DefaultAccelerator: 1, h100: 8}, want: h100, count: 1.0},
		{name: "H100, counted", devices: map[string]int{h100: 8}, given: `, "acceleratorCount": 2`, want: h100, count: 2.0},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			if c.devices != nil {
				s.do(register(c.devices))
			}
			body := `{"baseModel": "` + publicBase + `"` + c.given + `}`
			deployed := s.call(http.MethodPost, acme+"/deployments?deploymentId=d", "user", body)
			shaped := s.call(http.MethodPost, acme+"/deploymentShapes", "user",
				`{"deploymentShapeId": "s", "deploymentShape": `+body+`}`)
			if c.message != "" {
				for _, a := range []response{deployed, shaped} {
					require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
					require.Contains(t, string(a.body), c.message)
				}
				return
			}
			for _, a := range []response{deployed, shaped} {
				require.Equal(t, http.StatusOK, a.status, "%s", a.body)
			}
			require.Equal(t, c.want, deployed.json(t)["acceleratorType"])
			require.Equal(t, c.count, deployed.json(t)["acceleratorCount"])
			wantShape, wantCount := c.want, c.count
			if wantShape == nil {
				wantShape, wantCount = domain.NoAccelerator, 0.0
			}
			require.Equal(t, wantShape, shaped.json(t)["acceleratorType"])
			require.Equal(t, wantCount, shaped.json(t)["acceleratorCount"])
			with := s.call(http.MethodPost, acme+"/deployments?deploymentId=with&skipShapeValidation=true", "user",
				`{"baseModel": "`+publicBase+`", "deploymentShape": "accounts/acme/deploymentShapes/s"}`)
			require.Equal(t, http.StatusOK, with.status, "%s", with.body)
			require.Equal(t, c.want, with.json(t)["acceleratorType"])
			require.Equal(t, c.count, with.json(t)["acceleratorCount"])
		})
	}
}

// A decided is a command whose Decide returns a given event, such as one that an earlier release
// recorded.
type decided[S any] struct{ event domain.Event[S] }

// Decide implements domain.Command.
func (c decided[S]) Decide(S, time.Time) (domain.Event[S], error) { return c.event, nil }

// recorded returns the intent to record an event that an earlier release recorded.
func recorded[S any](kind *domain.Kind[S], name domain.Name, event domain.Event[S]) domain.Intent {
	return domain.Intend(kind, name, decided[S]{event})
}

// TestStoredAcceleratorsCanBeUpdated checks that a shape with a count and without a type, and a
// deployment with that shape, as earlier versions of anneal stored them, can be updated, and that the
// shape can be deployed.
func TestStoredAcceleratorsCanBeUpdated(t *testing.T) {
	s := newHarness(t, request.Limits{})
	executeAction(s, []string{"node", "accounts/system/nodes/n1"})
	const shape, version = "accounts/acme/deploymentShapes/s", "accounts/acme/deploymentShapes/s/versions/v1"
	s.do(recorded(domain.DeploymentShapes, shape, domain.DeploymentShapeCreated{ShapeSpec: domain.ShapeSpec{
		BaseModel: publicBase, AcceleratorType: domain.NoAccelerator, AcceleratorCount: 2},
		ModelTraits: domain.ModelTraits{ModelType: "llama", ParameterCount: 840_000}, Time: epoch}))
	for i, body := range []string{`{"description": "new"}`, `{"acceleratorCount": 0}`} {
		a := s.call(http.MethodPatch, "/v1/"+shape, "user", body)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, domain.NoAccelerator, a.json(t)["acceleratorType"])
		require.Equal(t, []float64{2, 0}[i], a.json(t)["acceleratorCount"])
	}
	made := s.call(http.MethodPost, acme+"/deployments?deploymentId=d&skipShapeValidation=true", "user",
		fmt.Sprintf(`{"baseModel": %q, "deploymentShape": %q}`, publicBase, version))
	require.Equal(t, http.StatusOK, made.status, "%s", made.body)
	require.NotContains(t, made.json(t), "acceleratorType")
	require.NotContains(t, made.json(t), "acceleratorCount")

	one := 1
	const deployment = "accounts/acme/deployments/stored"
	s.do(recorded(domain.Deployments, deployment, domain.DeploymentCreated{DeploymentSpec: domain.DeploymentSpec{
		BaseModel: publicBase, AcceleratorType: domain.DefaultAccelerator, AcceleratorCount: 2, DeploymentShape: version,
		MaxReplicaCount: &one, Placement: &domain.Placement{MultiRegion: "GLOBAL"}}, Time: epoch}))
	a := s.call(http.MethodPatch, "/v1/"+deployment, "user", `{"description": "new"}`)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, domain.DefaultAccelerator, a.json(t)["acceleratorType"])
}

package api

import (
	"strings"
	"testing"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// TestOptionalFieldsAlone checks that optional fields of a deployment may be set without the fields
// that they depend on, and that a setting without effect causes a warning and not an error.
func TestOptionalFieldsAlone(t *testing.T) {
	const model = `"baseModel": "accounts/default/models/anneal-base"`
	for field, line := range map[string]struct {
		value, kept any
		warns       string
	}{
		"draftTokenCount": {`4`, 4.0,
			"draftTokenCount: accepted, but has no effect without ngramSpeculationLength and draftModel: tokens are " +
				"drafted only for requests with the field prediction"},
		"hotLoadBucketType": {`"CLOUD_C"`, "CLOUD_C", "hotLoadBucketType: accepted, but has no effect unless it is " +
			"SERVICE_HOSTED: replicas load weights from the server's own storage"},
		"hotLoadBucketUrl": {`"s3://weights"`, "s3://weights", "hotLoadBucketUrl: accepted, but has no effect: replicas " +
			"load weights from the server's own storage"},
		"directRouteApiKeys": {`["k"]`, []any{"k"}, "directRouteApiKeys: accepted, but has no effect without " +
			"directRouteType: the deployment has no direct route"},
		"directRouteType": {`"INTERNET"`, "INTERNET",
			"directRouteType: accepted, but has no effect on a server without a domain for direct routes: the operator " +
				"must start the server with --direct-domain to have direct routes"},
		"draftModel":       {`""`, "", ""},
		"acceleratorCount": {`2`, 2.0, ""},
	} {
		t.Run(field, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			body := `{` + model + `, "` + field + `": ` + line.value.(string) + `}`
			imagined := s.call("POST", acme+"/deployments?validateOnly=true", "user", body)
			made := s.call("POST", acme+"/deployments?deploymentId=d", "user", body)
			for _, a := range []response{imagined, made} {
				require.Equal(t, 200, a.status, "%s", a.body)
				require.Equal(t, line.kept, a.json(t)[field])
				require.Equal(t, line.warns, a.header.Get("anneal-warning"))
			}
			if field == "acceleratorCount" {
				require.Equal(t, "VENDOR_A_A100_80GB", made.json(t)["acceleratorType"])
			}
			again := s.call("PATCH", acme+"/deployments/d", "user", `{"`+field+`": `+line.value.(string)+`}`)
			require.Equal(t, 200, again.status, "%s", again.body)
			require.Equal(t, line.warns, again.header.Get("anneal-warning"))
		})
	}
}

// TestNoDraftModel checks that a create with an empty draftModel overrides the draftModel of the
// shape.
func TestNoDraftModel(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.shape("drafts", `"baseModel": "accounts/default/models/anneal-base", "draftModel": `+
		`"accounts/default/models/anneal-base", "draftTokenCount": 3`, true)
	body := func(draft string) string {
		return `{"baseModel": "accounts/default/models/anneal-base", "deploymentShape": ` +
			`"accounts/acme/deploymentShapes/drafts"` + draft + `}`
	}
	made := s.ok("POST", acme+"/deployments?deploymentId=with", body("")).json(t)
	require.Equal(t, "accounts/default/models/anneal-base", made["draftModel"])
	s.ok("POST", acme+"/deployments?deploymentId=without", body(`, "draftModel": ""`))
	read := s.ok("GET", acme+"/deployments/without", "").json(t)
	require.Equal(t, "", read["draftModel"])
	s.ok("PATCH", acme+"/deployments/with", `{"draftModel": ""}`)
	require.Equal(t, "", s.ok("GET", acme+"/deployments/with", "").json(t)["draftModel"])
	s.ok("PATCH", acme+"/deployments/with?updateMask=draftModel", `{}`)
	require.Equal(t, "accounts/default/models/anneal-base",
		s.ok("GET", acme+"/deployments/with", "").json(t)["draftModel"],
		"a field that the update clears has the shape's value again")
}

// TestCacheReference checks that the settings of the reference model's cache are stored, with a
// warning that they have no effect.
func TestCacheReference(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.ok("POST", acme+"/datasets", `{"datasetId": "rows"}`)
	for settings, unused := range map[string][]string{
		`{"beta": 0.2}`:            nil,
		`{"refCacheBatchSize": 0}`: nil,
		`{"refCacheBatchSize": 4}`: {"refCacheBatchSize"},
		`{"beta": 0.2, "refCacheConcurrency": 2, "refCacheBatchSize": 4}`: {"refCacheBatchSize", "refCacheConcurrency"},
	} {
		a := s.ok("POST", acme+"/dpoJobs",
			`{"dataset": "accounts/acme/datasets/rows", "trainingConfig": {"baseModel": `+
				`"accounts/default/models/anneal-base"}, "lossConfig": {"dpo": `+settings+`}}`)
		var fullOutput []string
		for _, warning := range a.header.Values("anneal-warning") {
			field, why, _ := strings.Cut(strings.TrimPrefix(warning, "lossConfig.dpo."), ": ")
			require.Contains(t, why, "accepted, but has no effect")
			fullOutput = append(fullOutput, field)
			require.Positive(t, a.json(t)["lossConfig"].(map[string]any)["dpo"].(map[string]any)[field])
		}
		require.ElementsMatch(t, unused, fullOutput, settings)
	}
}

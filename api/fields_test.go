package api

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// TestFiltersKnowEnumerations checks that a filter with an unknown value of an enumeration is
// rejected, and that the error lists the known values.
func TestFiltersKnowEnumerations(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for _, c := range []struct{ list, filter, message string }{
		{"datasets", `state = READY AND format != FORMAT_UNSPECIFIED AND status.code = OK`, ""},
		{"supervisedFineTuningJobs", `state = JOB_STATE_RUNNING`, ""},
		{"deployments", `acceleratorType = VENDOR_A_L4_24GB AND placement.regions:US_IOWA_1`, ""},
		{"deployments", `precision = ""`, ""},
		{"datasets", `state = BOGUS`, `state has no value "BOGUS"; it is one of STATE_UNSPECIFIED, UPLOADING, READY`},
		{"datasets", `format = chat`, `format has no value "chat": did you mean CHAT? It is one of FORMAT_UNSPECIFIED, CHAT`},
		{"datasets", `status.code = FINE`, `status.code has no value "FINE"; it is one of OK, CANCELLED`},
		{"supervisedFineTuningJobs", `state = RUNNING`, `JOB_STATE_RUNNING`},
		{"dpoJobs", `state = RUNNING`, `JOB_STATE_RUNNING`},
		{"reinforcementFineTuningJobs", `state = RUNNING`, `JOB_STATE_RUNNING`},
		{"rlorTrainerJobs", `state = RUNNING`, `JOB_STATE_RUNNING`},
		{"models", `kind = ADDON`, `HF_BASE_MODEL`},
		{"deployments", `placement.regions:MARS`, `placement.regions has no value "MARS"`},
		{"deployments", `acceleratorType = A100`, `VENDOR_A_A100_80GB`},
		{"deploymentShapes", `presetType = CHEAP`, `MINIMAL`},
		{"events", `specversion = 2`, `1.0`},
	} {
		response := s.call("GET", acme+"/"+c.list+"?filter="+url.QueryEscape(c.filter), "user", "")
		if c.message == "" {
			require.Equal(t, http.StatusOK, response.status, "%s: %s", c.filter, response.body)
			continue
		}
		require.Equal(t, http.StatusBadRequest, response.status, "%s: %s", c.filter, response.body)
		require.Contains(t, response.json(t)["message"], c.message, c.filter)
	}
}

// TestListsShowWhyUploadWasRefused checks that a list shows why a dataset is still UPLOADING, and
// that filters find such datasets.
func TestListsShowWhyUploadWasRefused(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("waits")
	s.makeDataset("refused")
	a := s.upload(acme+"/datasets/refused:upload", "user", "file", "a.jsonl", strings.NewReader("no JSON\n"))
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	list := s.ok("GET", acme+"/datasets?filter="+url.QueryEscape("state = UPLOADING AND status.code != OK"), "").json(t)
	require.Equal(t, 1.0, list["totalSize"])
	shown := list["datasets"].([]any)[0].(map[string]any)
	require.Equal(t, "accounts/acme/datasets/refused", shown["name"])
	require.Equal(t, "INVALID_ARGUMENT", shown["status"].(map[string]any)["code"])
	require.Contains(t, shown["status"].(map[string]any)["message"], "a.jsonl:1")
}

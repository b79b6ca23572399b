package api

import (
	"net/url"
	"testing"

	"anneal/api/request"

	"github.com/stretchr/testify/require"
)

// TestWindowsAreDurations checks that filters and orders compare the scale-up windows of
// deployments as durations, and not as texts.
func TestWindowsAreDurations(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for id, window := range map[string]string{"a": "5s", "b": "60s", "c": "100s", "d": "600s"} {
		a := s.call("POST", acme+"/deployments?deploymentId="+id, "user",
			`{"baseModel":"accounts/default/models/anneal-base","autoscalingPolicy":{"scaleUpWindow":"`+window+`"}}`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	const field = "autoscalingPolicy.scaleUpWindow"
	names := func(query url.Values) (found string) {
		query.Set("readMask", "name")
		a := s.call("GET", acme+"/deployments?"+query.Encode(), "user", "")
		require.Equal(t, 200, a.status, "%s", a.body)
		items, _ := a.json(t)["deployments"].([]any)
		for _, item := range items {
			name := item.(map[string]any)["name"].(string)
			found += name[len(name)-1:]
		}
		return found
	}
	for filter, want := range map[string]string{"> 60s": "cd", ">= 100s": "cd", "< 100s": "ab", "= 1m": "b", "= 10m": "d",
		"!= 5s": "bcd"} {
		require.Equal(t, want, names(url.Values{"filter": {field + " " + filter}, "orderBy": {"name"}}), filter)
	}
	require.Equal(t, "dcba", names(url.Values{"orderBy": {field + " desc"}}))
	for _, wrong := range []string{"garbage", "60"} {
		a := s.call("GET", acme+"/deployments?"+url.Values{"filter": {field + " = " + wrong}}.Encode(), "user", "")
		require.Equal(t, 400, a.status, "%s", a.body)
		require.Contains(t, string(a.body), field)
	}
}

// TestValidValuesAreNotMissing checks that the error of a request with an invalid field does not
// report a valid secret value or API key as missing.
func TestValidValuesAreNotMissing(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", acme+"/secrets", "admin", `{"name":"BAD","keyName":"K","value":"v1"}`)
	require.Equal(t, 400, a.status)
	require.NotContains(t, string(a.body), "must not be empty")
	a = s.call("POST", acme+"/dpoJobs", "user",
		`{"dataset":"accounts/acme/datasets/none","trackerConfig":{"enabled":true,"apiKey":"z","project":"p","entity":"e"}}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "dataset")
	require.NotContains(t, string(a.body), "trackerConfig.apiKey")
}

// TestMatchTokensAreBoundToDeployment checks that a page token of the operation match is valid only
// for a request with the same deployment.
func TestMatchTokensAreBoundToDeployment(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aReviewed)
	for _, id := range []string{"one", "two"} {
		a := s.call("POST", acme+"/deploymentShapes", "user",
			`{"deploymentShapeId":"`+id+`","deploymentShape":{"baseModel":"accounts/default/models/anneal-base"}}`)
		require.Equal(t, 200, a.status, "%s", a.body)
		a = s.call("PATCH", acme+"/deploymentShapes/"+id+"/versions/v1", "admin", `{"validated":true}`)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	match := func(more, token string) response {
		return s.call("POST", acme+"/deploymentShapeVersions:match?pageSize=1&pageToken="+url.QueryEscape(token), "user",
			`{"createDeploymentRequest":{"deployment":{"baseModel":"accounts/default/models/anneal-base"`+more+`}}}`)
	}
	first := match("", "")
	require.Equal(t, 200, first.status, "%s", first.body)
	token, _ := first.json(t)["nextPageToken"].(string)
	require.NotEmpty(t, token, "%s", first.body)
	require.Equal(t, 200, match("", token).status)
	require.Equal(t, 400, match(`,"precision":"FP4"`, token).status)
}

// TestSuspensionComesFirst checks that an invalid request of a suspended account gets the error of
// the suspension.
func TestSuspensionComesFirst(t *testing.T) {
	s := newHarness(t, request.Limits{})
	a := s.call("POST", "/v1/accounts/acme:suspend", "operator", `{"suspendState":"CREDIT_DEPLETED"}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	for _, path := range []string{"/inference/v1/completions", "/inference/v1/chat/completions"} {
		require.Equal(t, 412, s.call("POST", path, "user", `{"temperature":9}`).status)
	}
}

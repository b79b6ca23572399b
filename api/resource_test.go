package api

import (
	"fmt"
	"math/rand/v2"
	"net/url"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/rest"
	"anneal/api/wire"
	"anneal/domain"
)

// TestConcurrentChanges checks that concurrent updates of different fields all succeed, and that
// none reverts the change of another.
func TestConcurrentChanges(t *testing.T) {
	s := servingHarness(t, 0)
	one := "/v1/accounts/acme/deployments/d1"
	var both sync.WaitGroup
	for field, value := range map[string]string{"displayName": `"n"`, "description": `"d"`, "maxReplicaCount": "7",
		"pricingPlanId": `"p"`, "autoscalingPolicy": `{"scaleUpWindow": "5s"}`} {
		both.Go(func() {
			a := s.call("PATCH", one, "user", `{"`+field+`": `+value+`}`)
			require.Equal(t, 200, a.status, "%s", a.body)
			require.Contains(t, a.json(t), field, "a client reads its own writes")
		})
	}
	both.Wait()
	d := s.call("GET", one, "user", "").json(t)
	require.Equal(t, "n", d["displayName"])
	require.Equal(t, "d", d["description"])
	require.Equal(t, 7.0, d["maxReplicaCount"])
	require.Equal(t, "p", d["pricingPlanId"])
	require.Equal(t, "5s", d["autoscalingPolicy"].(map[string]any)["scaleUpWindow"])
}

func TestNoOpRecordsNothing(t *testing.T) {
	s := servingHarness(t, 0)
	one := "/v1/accounts/acme/deployments/d1"
	before := s.world.Position()
	got := s.call("GET", one, "user", "")
	a := s.call("PATCH", one, "user", string(got.body))
	require.Equal(t, 200, a.status, "what was read can be written back: %s", a.body)
	require.JSONEq(t, string(got.body), string(a.body))
	require.Equal(t, 200, s.call("PATCH", one, "user", `{}`).status)
	require.Equal(t, before, s.world.Position())
}

func TestGetModifyPutOfEveryKind(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.makeDataset("d")
	s.do(register("accounts/acme/models/m", false))
	for _, path := range []string{"datasets/d", "models/m"} {
		got := s.call("GET", "/v1/accounts/acme/"+path, "user", "")
		a := s.call("PATCH", "/v1/accounts/acme/"+path, "user", string(got.body))
		require.Equal(t, 200, a.status, "%s", a.body)
		a = s.call("PATCH", "/v1/accounts/acme/"+path+"?updateMask=*", "user", string(got.body))
		require.Equal(t, 200, a.status, "%s", a.body)
	}
}

// TestPagesAreStable checks that a resource that exists throughout a listing is listed exactly
// once, also when other resources are created between the pages.
func TestPagesAreStable(t *testing.T) {
	s := newHarness(t, request.Limits{})
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 30 {
		s.makeDataset(fmt.Sprintf("keep-%02d", i))
	}
	for _, order := range []string{"", "createTime desc", "displayName"} {
		seen, token, extra := map[string]int{}, "", 0
		for {
			query := url.Values{"pageSize": {"7"}, "orderBy": {order}, "pageToken": {token}, "readMask": {"name"}}
			page := s.call("GET", "/v1/accounts/acme/datasets?"+query.Encode(), "user", "").json(t)
			for _, d := range page["datasets"].([]any) {
				seen[d.(map[string]any)["name"].(string)]++
			}
			next, more := page["nextPageToken"].(string)
			if !more {
				break
			}
			token = next
			extra++
			s.makeDataset(fmt.Sprintf("%c%d", 'a'+rune(random.IntN(26)), extra))
		}
		for i := range 30 {
			require.Equal(t, 1, seen[fmt.Sprintf("accounts/acme/datasets/keep-%02d", i)], order)
		}
		for row := range s.world.View().Datasets.In("acme") {
			if !strings.HasPrefix(row.Name.ID(), "keep-") {
				s.do(domain.Intend(domain.Datasets, row.Name, domain.RequestDeletion(domain.Datasets)))
				s.do(domain.Intend(domain.Datasets, row.Name, domain.DeleteDataset{}))
			}
		}
	}
}

func TestPageTokensAreBoundToRequest(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 3 {
		s.makeDataset(fmt.Sprintf("d%d", i))
	}
	const list = "/v1/accounts/acme/datasets?pageSize=1&filter=state=UPLOADING"
	token := s.call("GET", list, "user", "").json(t)["nextPageToken"].(string)
	require.Equal(t, 200, s.call("GET", list+"&pageToken="+token, "user", "").status)
	for _, other := range []string{
		"/v1/accounts/acme/datasets?pageSize=2&filter=state=UPLOADING",
		"/v1/accounts/acme/datasets?pageSize=1",
		"/v1/accounts/acme/datasets?pageSize=1&filter=state=UPLOADING&readMask=name",
		"/v1/accounts/acme/datasets?pageSize=1&filter=state=UPLOADING&orderBy=name%20desc",
		"/v1/accounts/acme/models?pageSize=1&filter=state=UPLOADING",
	} {
		a := s.call("GET", other+"&pageToken="+token, "user", "")
		require.Equal(t, 400, a.status, other)
		require.Contains(t, string(a.body), `"field":"pageToken"`)
	}
	a := s.call("GET", strings.Replace(list, "acme", "other", 1)+"&pageToken="+token, "other", "")
	require.Equal(t, 400, a.status, "another account's list")
	a = s.call("GET", list+"&pageToken="+token[:len(token)-2]+"xx", "user", "")
	require.Equal(t, 400, a.status, "forged")
}

func TestPageSizes(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for i := range 205 {
		s.do(domain.Intend(domain.Datasets, domain.NewName("acme", "datasets", fmt.Sprintf("d%d", i)),
			domain.CreateDataset{}))
	}
	for size, shown := range map[string]int{"0": 50, "": 50, "1": 1, "200": 200, "201": 200, "100000": 200} {
		page := s.call("GET", "/v1/accounts/acme/datasets?pageSize="+size, "user", "").json(t)
		require.Len(t, page["datasets"], shown, size)
		require.Equal(t, 205.0, page["totalSize"])
	}
}

// TestIDs checks the length and the characters of IDs.
func TestIDs(t *testing.T) {
	s := newHarness(t, request.Limits{})
	for id, status := range map[string]int{"a": 200, strings.Repeat("a", 63): 200, strings.Repeat("a", 64): 400, "a-": 400,
		"1a": 400, "A": 400, "a_b": 400, "a.b": 400} {
		require.Equal(t, status, s.call("POST", "/v1/accounts/acme/datasets", "user", `{"datasetId": "`+id+`"}`).status, id)
	}
	for _, path := range []string{"datasets/A", "datasets/a%2Fb", "datasets/..", "datasets/a.b", "datasets/*",
		"datasets/%3E", "datasets/a:b"} {
		require.Contains(t, []int{404, 405, 301, 307}, s.call("GET", "/v1/accounts/acme/"+path, "user", "").status, path)
	}
}

func FuzzBody(f *testing.F) {
	f.Add([]byte(`{"dataset": {"displayName": "x", "userUploaded": {}}, "datasetId": "d"}`))
	f.Add([]byte(`{"a": [1, 2, {"b": null}], "a": "\ud800"}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		tree, err := wire.Parse(data)
		if err != nil {
			if domain.CodeOf(err) != domain.InvalidArgument || err.Error() == "" {
				t.Fatalf("%v", err)
			}
			return
		}
		var v domain.Violations
		b := wire.Normalize(&v, typeOf[rest.Deployment](), tree)
		if len(v) > 0 {
			return
		}
		var out rest.Deployment
		if err := b.Fill(&out); err != nil {
			t.Fatalf("a normalized body does not match its type: %v", err)
		}
	})
}

package api

import (
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func (s *stage) quota(id string, most int) {
	s.Helper()
	a := s.call("PATCH", acme+"/quotas/"+id, "operator", fmt.Sprintf(`{"maxValue": %d}`, most))
	require.Equal(s, 200, a.status, "%s", a.body)
}

// usage is what the account is told that it has.
func (s *stage) usage(id string) int {
	s.Helper()
	n, err := strconv.Atoi(s.call("GET", acme+"/quotas/"+id, "user", "").json(s)["usage"].(string))
	require.NoError(s, err)
	return n
}

func exceeded(t *testing.T, a answer, id string) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Equal(t, "QUOTA_EXCEEDED", reasonOf(t, a))
	require.Contains(t, a.json(t)["message"], "accounts/acme/quotas/"+id)
	require.NotEmpty(t, a.header.Get("Retry-After"))
}

const onTwo = `{"baseModel": "accounts/default/models/anneal-base", "acceleratorType": "VENDOR_A_H100_80GB", "acceleratorCount": 2, "minReplicaCount": 0, "maxReplicaCount": 4}`

func TestJobsCountUntilTheyEnd(t *testing.T) {
	s := newStage(t, Limits{})
	require.Equal(t, 200, s.call("POST", acme+"/datasets", "user", `{"dataset": {}, "datasetId": "d"}`).status)
	s.quota(domain.QuotaJobs, 2)
	job := func(collection, id, body string) answer {
		return s.call("POST", acme+"/"+collection+"?"+collection[:len(collection)-1]+"Id="+id, "user", body)
	}
	const sft = `{"dataset": "accounts/acme/datasets/d"}`
	require.Equal(t, 200, job("supervisedFineTuningJobs", "j1", sft).status)
	a := job("dpoJobs", "j2", sft)
	require.Equal(t, 200, a.status, "%s", a.body)
	exceeded(t, job("supervisedFineTuningJobs", "j3", sft), domain.QuotaJobs)
	name := domain.Name("accounts/acme/supervisedFineTuningJobs/j1")
	s.do(domain.IntendJob(name, domain.PauseJob{Reason: "by its operator"}))
	exceeded(t, job("supervisedFineTuningJobs", "j3", sft), domain.QuotaJobs)
	require.Equal(t, 200, s.call("POST", "/v1/"+string(name)+":resume", "user", "").status, "a paused job counts already")
	s.do(domain.IntendJob(name, domain.FailJob{Status: domain.Status{Code: "INTERNAL", Message: "x"}}))
	require.Equal(t, 1, s.usage(domain.QuotaJobs))
	require.Equal(t, 200, job("supervisedFineTuningJobs", "j3", sft).status)
	exceeded(t, s.call("POST", "/v1/"+string(name)+":resume", "user", ""), domain.QuotaJobs)
	require.Equal(t, 200, s.call("DELETE", acme+"/supervisedFineTuningJobs/j3", "user", "").status)
	require.Equal(t, 200, s.call("POST", "/v1/"+string(name)+":resume", "user", "").status)
	require.Equal(t, 2, s.usage(domain.QuotaJobs))
}

func TestEveryWayToGetMoreIsCounted(t *testing.T) {
	s := newStage(t, Limits{Wake: 10 * time.Millisecond})
	for _, id := range []string{"d1", "gone"} {
		a := s.call("POST", acme+"/deployments?deploymentId="+id, "user", onTwo)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	require.Equal(t, 200, s.call("DELETE", acme+"/deployments/gone", "user", "").status)
	s.deployment("accounts/acme/deployments/gone", domain.FinishDeletion{Keep: time.Hour})
	require.Equal(t, 1, s.usage(domain.QuotaDeployments))
	s.quota(domain.QuotaDeployments, 1)
	s.quota(domain.QuotaAccelerators, 1)
	for _, c := range []struct{ name, method, path, body, quota string }{
		{"another deployment", "POST", "/deployments", onTwo, domain.QuotaDeployments},
		{"an undeleted one", "POST", "/deployments/gone:undelete", "", domain.QuotaDeployments},
		{"a larger scale", "PATCH", "/deployments/d1:scale", `{"replicaCount": 1}`, domain.QuotaAccelerators},
		{"a larger minimum", "PATCH", "/deployments/d1", `{"minReplicaCount": 1}`, domain.QuotaAccelerators},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.events()
			exceeded(t, s.call(c.method, acme+c.path, "user", c.body), c.quota)
			exceeded(t, s.call(c.method, acme+c.path, "operator", c.body), c.quota)
			require.Equal(t, before, s.events(), "nothing was recorded")
		})
	}
	t.Run("a request that would wake a deployment", func(t *testing.T) {
		a := s.complete(`"prompt": "x"`)
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Contains(t, string(a.body), "QUOTA_EXCEEDED")
		s.quota(domain.QuotaAccelerators, 2)
		a = s.complete(`"prompt": "x"`)
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		require.Contains(t, string(a.body), "is waking up")
		require.Contains(t, string(a.body), "wait for a place on a node", "why it has not woken")
		require.Equal(t, 2, s.usage(domain.QuotaAccelerators))
	})
	t.Run("what takes no more is free", func(t *testing.T) {
		s.quota(domain.QuotaAccelerators, 0)
		require.Equal(t, 200, s.call("PATCH", acme+"/deployments/d1", "user", `{"displayName": "x"}`).status)
		require.Equal(t, 200, s.call("PATCH", acme+"/deployments/d1:scale", "user", `{"replicaCount": 0}`).status)
	})
	t.Run("a refusal by quota gives an idempotency key back", func(t *testing.T) {
		exceeded(t, s.keyed("k", "POST", acme+"/deployments", "user", onTwo), domain.QuotaDeployments)
		s.quota(domain.QuotaDeployments, 2)
		require.Equal(t, 200, s.keyed("k", "POST", acme+"/deployments", "user", onTwo).status)
	})
}

func TestCreatesAtOnceDoNotOvershoot(t *testing.T) {
	s := newStage(t, Limits{})
	s.quota(domain.QuotaDeployments, 3)
	var all sync.WaitGroup
	statuses := make([]int, 12)
	for i := range statuses {
		all.Go(func() { statuses[i] = s.call("POST", acme+"/deployments", "user", onTwo).status })
	}
	all.Wait()
	count := map[int]int{}
	for _, status := range statuses {
		count[status]++
	}
	require.Equal(t, map[int]int{200: 3, 429: 9}, count)
	require.Equal(t, 3, s.usage(domain.QuotaDeployments))
}

func TestRequestsAMinute(t *testing.T) {
	s := newStage(t, Limits{})
	plain := s.call("GET", "/v1/accounts/acme", "user", "")
	require.Empty(t, plain.header.Get("X-RateLimit-Limit-Requests"), "no quota, no headers")
	s.quota(domain.QuotaRequestsPerMinute, 60)
	ask := func(alias string) answer { return s.call("GET", "/v1/accounts/acme", alias, "") }
	passed := 0
	var a answer
	for range 200 { // the clock moves a second each time, which is as many requests as come in
		s.clock.add(-time.Second)
		if a = ask("user"); a.status != 200 {
			break
		}
		passed++
	}
	require.Equal(t, 60, passed, "a minute's requests at once")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining-Requests"))
	require.Equal(t, "60", a.header.Get("X-RateLimit-Limit-Requests"))
	require.Equal(t, "1m0s", a.header.Get("X-RateLimit-Reset-Requests"))
	require.Equal(t, 200, ask("user").status, "a second later there is room for one")
	require.Equal(t, 200, s.call("GET", "/v1/accounts/other", "other", "").status, "others are not held up")
	s.quota(domain.QuotaRequestsPerMinute, 0)
	a = ask("admin")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "60", a.header.Get("Retry-After"))
	require.Equal(t, 200, s.call("PATCH", acme+"/quotas/requests-per-minute", "operator", `{"maxValue": null}`).status)
	require.Equal(t, 200, ask("user").status)
}

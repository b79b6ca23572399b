package api

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

func (s *harness) quota(id string, limit int) {
	s.Helper()
	a := s.call("PATCH", acme+"/quotas/"+id, "operator", fmt.Sprintf(`{"maxValue": %d}`, limit))
	require.Equal(s, 200, a.status, "%s", a.body)
}

// usage returns the usage that counts against a quota of acme.
func (s *harness) usage(id string) int {
	s.Helper()
	n, err := strconv.Atoi(s.call("GET", acme+"/quotas/"+id, "user", "").json(s)["usage"].(string))
	require.NoError(s, err)
	return n
}

func exceeded(t *testing.T, a response, id string) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Equal(t, "QUOTA_EXCEEDED", reasonOf(t, a))
	require.Contains(t, a.json(t)["message"], "accounts/acme/quotas/"+id)
	require.NotEmpty(t, a.header.Get("Retry-After"))
}

// tooSmall requires the error QUOTA_TOO_SMALL, which advises against a retry.
func tooSmall(t *testing.T, a response, id string) {
	t.Helper()
	require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
	require.Equal(t, request.ReasonQuotaTooSmall, reasonOf(t, a))
	require.Contains(t, a.json(t)["message"], "ask the operator to raise accounts/acme/quotas/"+id)
	require.Empty(t, a.header.Get("Retry-After"))
	require.Equal(t, "false", a.header.Get(request.NoRetryHeader))
}

// TestQuotasOfZeroPromiseNoRetry checks for every quota that the error of a quota of 0 does not
// advise to send the request again.
func TestQuotasOfZeroPromiseNoRetry(t *testing.T) {
	for _, id := range domain.QuotaIDs {
		if id == domain.QuotaGuaranteed {
			continue // limits nothing
		}
		t.Run(id, func(t *testing.T) {
			s := newHarness(t, request.Limits{})
			require.Equal(t, 200, s.call("POST", acme+"/datasets", "user", `{"datasetId": "d"}`).status)
			s.quota(id, 0)
			send := map[string]func() response{
				domain.QuotaAccelerators: func() response {
					return s.call("POST", acme+"/deployments", "user", strings.Replace(onTwo, `"minReplicaCount": 0`,
						`"minReplicaCount": 1`, 1))
				},
				domain.QuotaDeployments: func() response { return s.call("POST", acme+"/deployments", "user", onTwo) },
				domain.QuotaJobs: func() response {
					return s.call("POST", acme+"/dpoJobs", "user", `{"dataset": "accounts/acme/datasets/d"}`)
				},
				domain.QuotaStorageBytes: func() response {
					return s.upload(acme+"/datasets/d:upload", "user", "file", "a.jsonl", strings.NewReader(threeRows))
				},
				domain.QuotaRequestsPerMinute: func() response { return s.call("GET", acme, "user", "") },
			}[id]
			require.NotNil(t, send, "no request counts against the quota")
			tooSmall(t, send(), id)
		})
	}
}

const onTwo = `{"baseModel": "accounts/default/models/anneal-base", "acceleratorType": "VENDOR_A_H100_80GB", ` +
	`"acceleratorCount": 2, "minReplicaCount": 0, "maxReplicaCount": 4}`

func TestJobsCountUntilTheyEnd(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("POST", acme+"/datasets", "user", `{"dataset": {}, "datasetId": "d"}`).status)
	s.quota(domain.QuotaJobs, 2)
	job := func(collection, id, body string) response {
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
	require.Equal(t, 200, s.call("POST", "/v1/"+string(name)+":resume", "user", "").status, "a paused job counts")
	s.do(domain.IntendJob(name, domain.FailJob{Status: domain.Status{Code: "INTERNAL", Message: "x"}}))
	require.Equal(t, 1, s.usage(domain.QuotaJobs))
	require.Equal(t, 200, job("supervisedFineTuningJobs", "j3", sft).status)
	exceeded(t, s.call("POST", "/v1/"+string(name)+":resume", "user", ""), domain.QuotaJobs)
	require.Equal(t, 200, s.call("DELETE", acme+"/supervisedFineTuningJobs/j3", "user", "").status)
	require.Equal(t, 200, s.call("POST", "/v1/"+string(name)+":resume", "user", "").status)
	require.Equal(t, 2, s.usage(domain.QuotaJobs))
}

func TestQuotasCountEveryIncrease(t *testing.T) {
	s := newHarness(t, request.Limits{Wake: 10 * time.Millisecond})
	for _, id := range []string{"d1", "gone"} {
		a := s.call("POST", acme+"/deployments?deploymentId="+id, "user", onTwo)
		require.Equal(t, 200, a.status, "%s", a.body)
	}
	require.Equal(t, 200, s.call("DELETE", acme+"/deployments/gone", "user", "").status)
	s.deployment("accounts/acme/deployments/gone", domain.FinishDeletion{Keep: time.Hour})
	require.Equal(t, 1, s.usage(domain.QuotaDeployments))
	s.quota(domain.QuotaDeployments, 1)
	s.quota(domain.QuotaAccelerators, 1)
	for _, c := range []struct {
		name, method, path, body, quota string
		requires                        func(*testing.T, response, string)
	}{
		{"another deployment", "POST", "/deployments", onTwo, domain.QuotaDeployments, exceeded},
		{"an undeleted one", "POST", "/deployments/gone:undelete", "", domain.QuotaDeployments, exceeded},
		{"a larger scale", "PATCH", "/deployments/d1:scale", `{"replicaCount": 1}`, domain.QuotaAccelerators, tooSmall},
		{"a larger minimum", "PATCH", "/deployments/d1", `{"minReplicaCount": 1}`, domain.QuotaAccelerators, tooSmall},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := s.events()
			c.requires(t, s.call(c.method, acme+c.path, "user", c.body), c.quota)
			c.requires(t, s.call(c.method, acme+c.path, "operator", c.body), c.quota)
			require.Equal(t, before, s.events(), "nothing is recorded")
		})
	}
	t.Run("a request that would wake a deployment", func(t *testing.T) {
		a := s.complete(`"prompt": "x"`)
		require.Equal(t, http.StatusTooManyRequests, a.status, "%s", a.body)
		require.Contains(t, string(a.body), request.ReasonQuotaTooSmall)
		s.quota(domain.QuotaAccelerators, 2)
		a = s.complete(`"prompt": "x"`)
		require.Equal(t, http.StatusServiceUnavailable, a.status, "%s", a.body)
		require.Contains(t, string(a.body), "had no ready replica within")
		require.Contains(t, string(a.body), "waiting for a node", "why it has not woken")
		require.Equal(t, 2, s.usage(domain.QuotaAccelerators))
	})
	t.Run("changes that use no more are not limited", func(t *testing.T) {
		s.quota(domain.QuotaAccelerators, 0)
		require.Equal(t, 200, s.call("PATCH", acme+"/deployments/d1", "user", `{"displayName": "x"}`).status)
		require.Equal(t, 200, s.call("PATCH", acme+"/deployments/d1:scale", "user", `{"replicaCount": 0}`).status)
	})
	t.Run("rejection by a quota releases the idempotency key", func(t *testing.T) {
		exceeded(t, s.keyed("k", "POST", acme+"/deployments", "user", onTwo), domain.QuotaDeployments)
		s.quota(domain.QuotaDeployments, 2)
		require.Equal(t, 200, s.keyed("k", "POST", acme+"/deployments", "user", onTwo).status)
	})
}

func TestConcurrentCreatesStayWithinQuota(t *testing.T) {
	s := newHarness(t, request.Limits{})
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

func TestRequestsPerMinute(t *testing.T) {
	s := newHarness(t, request.Limits{})
	plain := s.call("GET", "/v1/accounts/acme", "user", "")
	require.Empty(t, plain.header.Get("X-RateLimit-Limit-Requests"), "no quota, no headers")
	s.quota(domain.QuotaRequestsPerMinute, 60)
	send := func(alias string) response { return s.call("GET", "/v1/accounts/acme", alias, "") }
	passed := 0
	var a response
	for range 200 { // the clock advances one second per request, in which the bucket gets one token
		s.clock.add(-time.Second)
		if a = send("user"); a.status != 200 {
			break
		}
		passed++
	}
	require.Equal(t, 60, passed, "the requests of a minute, concurrently")
	require.Equal(t, http.StatusTooManyRequests, a.status)
	require.Equal(t, "1", a.header.Get("Retry-After"))
	require.Equal(t, "0", a.header.Get("X-RateLimit-Remaining-Requests"))
	require.Equal(t, "60", a.header.Get("X-RateLimit-Limit-Requests"))
	require.Equal(t, "1m0s", a.header.Get("X-RateLimit-Reset-Requests"))
	require.Equal(t, 200, send("user").status, "a second later one more is admitted")
	require.Equal(t, 200, s.call("GET", "/v1/accounts/other", "other", "").status, "other accounts are not limited")
	s.quota(domain.QuotaRequestsPerMinute, 0)
	tooSmall(t, send("admin"), domain.QuotaRequestsPerMinute)
	require.Equal(t, 200, s.call("PATCH", acme+"/quotas/requests-per-minute", "operator", `{"maxValue": null}`).status)
	require.Equal(t, 200, send("user").status)
}

// TestReadsOfQuotasAreNotCounted checks that a client can watch its quotas without using them up,
// also when no request remains. All other operations count, also the events of a quota, which are
// read from the log.
func TestReadsOfQuotasAreNotCounted(t *testing.T) {
	var uncounted []string
	for _, operation := range (&Server{}).operations() {
		if operation.Uncounted {
			uncounted = append(uncounted, operation.ID)
		}
	}
	require.ElementsMatch(t, []string{"listQuotas", "getQuota"}, uncounted)
	s := newHarness(t, request.Limits{})
	s.quota(domain.QuotaRequestsPerMinute, 3)
	reads := func() {
		for _, path := range []string{"/quotas", "/quotas/requests-per-minute"} {
			s.clock.add(-time.Second) // the bucket gets no token meanwhile
			require.Equal(t, 200, s.call("GET", acme+path, "user", "").status, path)
		}
	}
	reads()
	require.Zero(t, s.usage(domain.QuotaRequestsPerMinute))
	for _, path := range []string{"", "/events", "/quotas/requests-per-minute/events"} {
		s.clock.add(-time.Second)
		require.Equal(t, 200, s.call("GET", acme+path, "user", "").status)
	}
	s.clock.add(-time.Second)
	require.Equal(t, http.StatusTooManyRequests,
		s.call("GET", acme+"/quotas/requests-per-minute/events", "user", "").status)
	reads()
}

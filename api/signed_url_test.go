package api

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// earlierEvent is a command that records an event that an earlier version of anneal recorded.
type earlierEvent[S any] struct{ event domain.Event[S] }

func (r earlierEvent[S]) Decide(S, time.Time) (domain.Event[S], error) { return r.event, nil }

// TestSignedURLsStaySecret checks that no response, event or log line contains the query string of a
// metricsFileSignedUrl, neither of a new job, whose URL is sealed in the log, nor of a job whose
// URL an earlier version recorded in plain text.
func TestSignedURLsStaySecret(t *testing.T) {
	const address = "https://store.example.com/metrics/j1.jsonl"
	s := newHarness(t, request.Limits{})
	s.makeDataset("d")
	require.Equal(t, 200, s.upload(acme+"/datasets/d:upload", "user", "file", "a.jsonl",
		strings.NewReader(strings.Repeat("{\"text\": \"t\"}\n", 3))).status)
	live, _ := s.listen(acme+"/events", "admin")
	body := func(url string) string {
		return `{"dataset": "accounts/acme/datasets/d", "metricsFileSignedUrl": "` + url + `"}`
	}
	const jobs = acme + "/supervisedFineTuningJobs"
	whole := address + "?sig=" + canary + "&expires=1"
	created := s.ok("POST", jobs+"?supervisedFineTuningJobId=j1", body(whole))
	require.Equal(t, address, created.json(t)["metricsFileSignedUrl"])
	require.NotContains(t, string(created.body), canary)
	s.ok("POST", jobs+"?supervisedFineTuningJobId=plain", body(address))
	s.ok("POST", jobs+":estimateCost", `{"supervisedFineTuningJob": `+body(whole)+`}`)
	old := domain.Name("accounts/acme/supervisedFineTuningJobs/old")
	s.do(domain.Intend(domain.SupervisedJobs, old, earlierEvent[domain.SupervisedJob]{
		domain.SupervisedJobCreated{SupervisedSpec: domain.SupervisedSpec{Dataset: "accounts/acme/datasets/d",
			MetricsFileSignedURL: domain.SignedURL(whole)}}}))

	for _, invalid := range []string{"ftp://store.example.com/?sig=" + canary, "store?sig=" + canary,
		"https://" + canary + "@store.example.com/m", "https://store.example.com/?sig=" + canary +
			strings.Repeat("x", domain.MaxURL)} {
		for _, at := range []string{jobs, jobs + ":estimateCost"} {
			given := body(invalid)
			if at != jobs {
				given = `{"supervisedFineTuningJob": ` + given + `}`
			}
			a := s.call("POST", at, "admin", given)
			require.Equal(t, 400, a.status, "%s", a.body)
			require.Contains(t, string(a.body), "metricsFileSignedUrl")
			require.NotContains(t, string(a.body), canary)
		}
	}
	for range 3 {
		data := live.next()["data"].(map[string]any)
		require.Equal(t, address, data["metricsFileSignedUrl"])
		require.NotContains(t, data, "sealedMetricsFileSignedUrl")
	}
	for _, path := range []string{"supervisedFineTuningJobs", "supervisedFineTuningJobs/j1",
		"supervisedFineTuningJobs/old",
		"supervisedFineTuningJobs/plain", "supervisedFineTuningJobs/j1/events", "supervisedFineTuningJobs/old/events",
		"events?pageSize=200", "supervisedFineTuningJobs?readMask=metricsFileSignedUrl"} {
		a := s.call("GET", acme+"/"+path, "admin", "")
		require.Equal(t, 200, a.status, "%s: %s", path, a.body)
		require.Contains(t, string(a.body), address, path)
		for _, secret := range []string{canary, "expires", "ciphertext"} {
			require.NotContains(t, string(a.body), secret, path)
		}
	}
	for e, err := range s.log.Read(t.Context(), ">", 0) {
		require.NoError(t, err)
		require.Equal(t, e.Name == old, strings.Contains(string(e.Data), canary), "%s", e.Data)
	}
	require.NotContains(t, s.logged.String(), canary)

	row, _ := s.world.Row("accounts/acme/supervisedFineTuningJobs/j1")
	sealed := row.(domain.SupervisedJob).SealedMetricsURL
	s.reconcile()
	require.Equal(t, []string{sealed.KeyID}, s.dataKeys(), "a URL without a query string is not sealed")
	opened, err := s.vault.Open(t.Context(), "accounts/acme/supervisedFineTuningJobs/j1", *sealed)
	require.NoError(t, err)
	require.Equal(t, whole, opened.Reveal())
}

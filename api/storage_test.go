package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

const oneRow = `{"prompt": "a", "completion": "b"}` + "\n"

// datasetOf creates a dataset without rows, and returns its path.
func (s *harness) datasetOf(id string) (path string) {
	s.Helper()
	require.Equal(s, 200, s.call("POST", acme+"/datasets", "user", fmt.Sprintf(`{"datasetId": %q}`, id)).status)
	return acme + "/datasets/" + id
}

func (s *harness) uploadRows(id string, n int) response {
	s.Helper()
	return s.upload(acme+"/datasets/"+id+":upload", "user", "file", "rows.jsonl",
		strings.NewReader(strings.Repeat(oneRow, n)))
}

// signedPut returns a signed URL to which n bytes of a dataset's rows can be PUT, or the response
// when the request fails.
func (s *harness) signedPut(id string, n int) (url string, failed response) {
	s.Helper()
	a := s.call("POST", acme+"/datasets/"+id+":getUploadEndpoint", "user",
		fmt.Sprintf(`{"filenameToSize": {"r.jsonl": %d}}`, n))
	if a.status != 200 {
		return "", a
	}
	return a.json(s)["filenameToSignedUrls"].(map[string]any)["r.jsonl"].(string), a
}

// TestStorageQuota checks that an upload beyond the quota storage-bytes is rejected and not stored.
// An upload of known size is rejected before the body is read, and any other upload when its bytes
// exceed the quota.
func TestStorageQuota(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const rows = 1000
	size := rows * len(oneRow)
	s.datasetOf("first")
	require.Equal(t, 200, s.uploadRows("first", rows).status)
	require.Equal(t, size, s.usage(domain.QuotaStorageBytes))
	kept := s.stored("datasets/acme/")
	s.quota(domain.QuotaStorageBytes, size+size/2)

	t.Run("a form with a known length", func(t *testing.T) {
		s.datasetOf("second")
		r := s.form(acme+"/datasets/second:upload", "user", "file", "rows.jsonl",
			strings.NewReader(strings.Repeat(oneRow, rows)))
		a := s.send(r)
		exceeded(t, a, domain.QuotaStorageBytes)
		require.Contains(t, a.json(t)["message"], fmt.Sprintf("has a quota of %d storage bytes and uses "+
			"%d", size+size/2, size))
		require.Contains(t, a.json(t)["message"], "delete some datasets, models or evaluators")
		require.Equal(t, kept, s.stored("datasets/acme/"))
	})
	t.Run("a form without", func(t *testing.T) {
		r := s.form(acme+"/datasets/second:upload", "user", "file", "rows.jsonl",
			strings.NewReader(strings.Repeat(oneRow, rows)))
		r.ContentLength, r.GetBody = -1, nil
		exceeded(t, s.send(r), domain.QuotaStorageBytes)
		require.Equal(t, kept, s.stored("datasets/acme/"))
	})
	t.Run("announced files", func(t *testing.T) {
		_, a := s.signedPut("second", size)
		exceeded(t, a, domain.QuotaStorageBytes)
	})
	t.Run("files that are PUT count before they are validated", func(t *testing.T) {
		url, _ := s.signedPut("second", size/2)
		other, _ := s.signedPut("second", size/2)
		s.datasetOf("third")
		late, _ := s.signedPut("third", size/2)
		require.Equal(t, 200, s.put(url, strings.Repeat(oneRow, rows/2)).status)
		require.Equal(t, http.StatusInsufficientStorage, s.put(late, strings.Repeat(oneRow, rows/2)).status)
		a := s.put(other, strings.Repeat(oneRow, rows/2))
		require.Equal(t, http.StatusInsufficientStorage, a.status)
		require.Contains(t, a.json(t)["message"], "accounts/acme/quotas/storage-bytes")
		_, a = s.signedPut("third", 1)
		exceeded(t, a, domain.QuotaStorageBytes)
		require.Len(t, s.stored("arrivals/acme/"), 1)
		require.Equal(t, 200, s.call("POST", acme+"/datasets/second:validateUpload", "user", "").status)
		require.Equal(t, size+size/2, s.usage(domain.QuotaStorageBytes))
	})
	t.Run("work whose result needs storage, at the limit", func(t *testing.T) {
		exceeded(t, s.call("POST", acme+"/datasets", "user", `{"datasetId": "d", "sourceDatasetId": "first", "filter": ""}`),
			domain.QuotaStorageBytes)
		exceeded(t, s.uploadRows("third", 3), domain.QuotaStorageBytes)
		exceeded(t, s.uploadModel(s.modelOf("m"), "user", tinyModel), domain.QuotaStorageBytes)
		exceeded(t, s.upload(s.evaluatorOf("e")+":upload", "user", "file", "main.py", strings.NewReader("x")),
			domain.QuotaStorageBytes)
	})
	t.Run("a deletion frees storage", func(t *testing.T) {
		require.Equal(t, 200, s.call("DELETE", acme+"/datasets/first", "user", "").status)
		require.Equal(t, 200, s.uploadRows("third", 3).status)
	})
	require.Zero(t, s.server.uploads.Pending(), "every reservation is released")
}

// TestConcurrentUploadsStayWithinQuota checks that concurrent uploads together do not exceed the
// quota storage-bytes.
func TestConcurrentUploadsStayWithinQuota(t *testing.T) {
	s := newHarness(t, request.Limits{})
	const rows = 2000
	s.quota(domain.QuotaStorageBytes, 5*rows*len(oneRow)/2)
	statuses := make([]int, 8)
	for i := range statuses {
		s.datasetOf(fmt.Sprintf("d%d", i))
	}
	var all sync.WaitGroup
	for i := range statuses {
		all.Go(func() { statuses[i] = s.uploadRows(fmt.Sprintf("d%d", i), rows).status })
	}
	all.Wait()
	accepted := 0
	for _, status := range statuses {
		require.Contains(t, []int{200, 429}, status)
		if status == 200 {
			accepted++
		}
	}
	require.Contains(t, []int{1, 2}, accepted)
	require.Equal(t, accepted*rows*len(oneRow), s.usage(domain.QuotaStorageBytes))
	require.Len(t, s.stored("datasets/acme/"), accepted, "rejected files are not stored")
	require.Zero(t, s.server.uploads.Pending())
}

func (s *harness) modelOf(id string) string {
	s.Helper()
	require.Equal(s, 200, s.call("POST", acme+"/models", "user", fmt.Sprintf(`{"modelId": %q}`, id)).status)
	return id
}

func (s *harness) evaluatorOf(id string) (path string) {
	s.Helper()
	require.Equal(s, 200, s.call("POST", acme+"/evaluators", "user",
		fmt.Sprintf(`{"evaluatorId": %q, "evaluator": {"entryPoint": "main.py:score"}}`, id)).status)
	return acme + "/evaluators/" + id
}

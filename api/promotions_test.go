package api

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/blobs/reconcile/faults"
	"anneal/domain"
)

const (
	promotedJob = domain.Name("accounts/acme/dpoJobs/j")
	promotePath = acme + "/dpoJobs/j/checkpoints/1-200:promote"
	// promotedSize is the size of the model in a checkpoint of checkpointMade, in bytes.
	promotedSize = 580
)

func (s *harness) promote(id string) response {
	s.Helper()
	return s.call("POST", promotePath, "user", fmt.Sprintf(`{"modelId": %q}`, id))
}

// copies returns the files of promoted models in the blob store, including unreferenced files.
func (s *harness) copies() (keys []string) {
	s.Helper()
	for f, err := range s.store.List(s.Context(), blobs.ModelRoot) {
		require.NoError(s, err)
		if strings.Contains(f.Key, "/promoted-") {
			keys = append(keys, f.Key)
		}
	}
	return keys
}

// deletePromotedJob deletes the job of checkpointMade and everything that only the job refers to.
func (s *harness) deletePromotedJob() {
	s.Helper()
	s.do(domain.IntendJob(promotedJob, domain.DeleteJob{}))
	s.do(domain.IntendJob(promotedJob, domain.CleanJob{}))
	s.do(domain.IntendJob(promotedJob, domain.PurgeJob{}))
	prefix := blobs.JobRoot + "acme/"
	require.NoError(s, s.store.DeletePrefix(s.Context(), prefix), "as the reconciler does within seconds")
}

// agrees requires that the world and the stored files are consistent, and that no reservations of
// storage remain.
func (s *harness) agrees() {
	s.Helper()
	require.NoError(s, faults.Agree(s.Context(), s.world.View(), s.store, s.vault))
	require.Zero(s, s.server.uploads.Pending(), "every reservation is released")
}

// TestPromotionCountsAgainstStorage checks that a promotion beyond the quota storage-bytes is
// rejected before any file is copied, and that a promotion that exactly reaches the quota is
// accepted.
func TestPromotionCountsAgainstStorage(t *testing.T) {
	s := checkpointHarness(t)
	require.Equal(t, 200, s.promote("first").status)
	used := s.usage(domain.QuotaStorageBytes)
	require.Equal(t, promotedSize, used)
	for _, limit := range []int{used + promotedSize - 1, promotedSize - 1, 0} {
		s.quota(domain.QuotaStorageBytes, limit)
		plan := faults.NewPlan("", 0)
		s.plan.Store(plan)
		a := s.promote("second")
		s.plan.Store(nil)
		if limit < promotedSize {
			tooSmall(t, a, domain.QuotaStorageBytes)
		} else {
			exceeded(t, a, domain.QuotaStorageBytes)
			require.Contains(t, a.json(t)["message"], fmt.Sprintf("has a quota of %d storage bytes and uses %d; the request "+
				"adds %d: "+
				"delete some datasets, models or evaluators", limit, used, promotedSize))
		}
		for _, step := range plan.Steps() {
			require.NotContains(t, step, "copy", "nothing is copied before the quota is checked")
		}
		require.Len(t, s.copies(), 2, "the files of the first model")
		s.agrees()
	}
	s.quota(domain.QuotaStorageBytes, used+promotedSize)
	a := s.promote("second")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, used+promotedSize, s.usage(domain.QuotaStorageBytes))
	s.agrees()
}

// TestConcurrentPromotionsStayWithinQuota checks that concurrent promotions together do not exceed
// the quota storage-bytes, and that the rejected ones leave no files.
func TestConcurrentPromotionsStayWithinQuota(t *testing.T) {
	s := checkpointHarness(t)
	s.quota(domain.QuotaStorageBytes, s.usage(domain.QuotaStorageBytes)+5*promotedSize/2)
	statuses := concurrently(8, func(i int) int { return s.promote(fmt.Sprint("m", i)).status })
	require.Equal(t, len(statuses), count(statuses, 200)+count(statuses, 429))
	require.Contains(t, []int{1, 2}, count(statuses, 200))
	require.Len(t, s.copies(), 2*count(statuses, 200))
	s.agrees()
}

// concurrently returns the results of n concurrent calls of do.
func concurrently(n int, do func(i int) int) []int {
	results := make([]int, n)
	var all sync.WaitGroup
	for i := range results {
		all.Go(func() { results[i] = do(i) })
	}
	all.Wait()
	return results
}

func count(all []int, one int) (n int) {
	for _, each := range all {
		if each == one {
			n++
		}
	}
	return n
}

// TestConcurrentPromotionsToOneModel checks that of promotions to the same model exactly one
// succeeds. The others get ALREADY_EXISTS and remove only their own copies.
func TestConcurrentPromotionsToOneModel(t *testing.T) {
	s := checkpointHarness(t)
	statuses := concurrently(8, func(int) int { return s.promote("kept").status })
	require.Equal(t, []int{1, 7}, []int{count(statuses, 200), count(statuses, 409)}, "%v", statuses)
	require.Len(t, s.copies(), 2)
	s.agrees()

	racing := s.another(func(o *Options) {
		o.Log = &racingLog{Memory: s.log, before: "model.registered.v1", do: func() {
			require.Equal(t, 200, s.promote("contested").status)
		}}
	})
	a := racing.promote("contested") // has copied its files when the other promotion begins
	require.Equal(t, http.StatusConflict, a.status, "%s", a.body)
	require.Equal(t, "ALREADY_EXISTS", reasonOf(t, a))
	require.Contains(t, a.json(t)["message"], "modelId: accounts/acme/models/contested already exists")
	require.Len(t, s.copies(), 4)
	s.agrees()
}

// TestPromotionDuringDeletionOfItsJob checks that a promotion either registers a complete model or
// fails with NOT_FOUND and leaves no files, when the job is deleted during the promotion.
func TestPromotionDuringDeletionOfItsJob(t *testing.T) {
	t.Run("after the files are copied", func(t *testing.T) {
		s := checkpointHarness(t)
		racing := s.another(func(o *Options) {
			o.Log = &racingLog{Memory: s.log, before: "model.registered.v1", do: func() {
				s.deletePromotedJob()
				r := reconcile.New(reconcile.Options{Log: s.log, World: s.world, Blobs: s.store, Keys: s.vault})
				require.NoError(t, r.Reconcile(t.Context(), reconcile.Grace), "keeps files that await their event")
			}}
		})
		a := racing.promote("kept")
		require.Equal(t, 200, a.status, "%s", a.body)
		require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
		s.reconcile()
		require.Len(t, s.copies(), 2)
		s.agrees()
	})
	t.Run("while the files are copied", func(t *testing.T) {
		s := checkpointHarness(t)
		copied := 0
		interrupt := func(change string) {
			if change != "copy" {
				return
			}
			if copied++; copied == 2 { // one file is copied, the other one is gone
				s.before.Store(nil)
				s.deletePromotedJob()
			}
		}
		s.before.Store(&interrupt)
		a := s.promote("kept")
		require.Equal(t, http.StatusNotFound, a.status, "%s", a.body)
		require.Contains(t, a.json(t)["message"], "accounts/acme/dpoJobs/j")
		require.Equal(t, 2, copied)
		require.Empty(t, s.copies())
		s.agrees()
	})
}

// TestRepeatedPromotion checks that a promotion with an idempotency key creates one model, whatever
// happened to the response and to the job after the first attempt.
func TestRepeatedPromotion(t *testing.T) {
	const body = `{"modelId": "kept"}`
	s := checkpointHarness(t)
	failing := s.another(func(o *Options) { o.Idempotency = lostResponses{o.Idempotency} })
	first := failing.keyed("k", "POST", promotePath, "user", body)
	require.Equal(t, 200, first.status, "%s", first.body)
	require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
	s.deletePromotedJob()
	after := s.events()
	s.clock.add(request.ClaimTime)
	second := s.keyed("k", "POST", promotePath, "user", body)
	require.Equal(t, 200, second.status, "%s", second.body)
	require.Equal(t, string(first.body), string(second.body), "like the first request")
	sameAs(t, second, s.keyed("k", "POST", promotePath, "user", body))
	require.Equal(t, after, s.events(), "executed once")
	require.Len(t, s.copies(), 2, "a repeated request copies nothing")
	other := s.promote("kept")
	require.Equal(t, http.StatusNotFound, other.status, "a new request finds no job: %s", other.body)
	s.agrees()
}

// TestUncertainPromotionKeepsItsFiles checks that a promotion whose append is not acknowledged keeps
// the files, because the event may be in the log, and that a repeated request succeeds.
func TestUncertainPromotionKeepsItsFiles(t *testing.T) {
	s := checkpointHarness(t)
	failing := s.another(func(o *Options) { o.Log = lostAckLog{s.log} })
	first := failing.keyed("k", "POST", promotePath, "user", `{"modelId": "kept"}`)
	require.Equal(t, http.StatusServiceUnavailable, first.status, "%s", first.body)
	require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
	s.agrees()
	require.Len(t, s.copies(), 2)
	second := s.keyed("k", "POST", promotePath, "user", `{"modelId": "kept"}`)
	require.Equal(t, 200, second.status, "%s", second.body)
	require.Len(t, s.copies(), 2)
	s.agrees()
}

// TestRepeatedPreparationAtTheQuota checks that a preparation of a copy with an idempotency key
// succeeds again when the account has reached its quota after the first attempt.
func TestRepeatedPreparationAtTheQuota(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	require.Equal(t, 200, s.uploadModel(s.modelOf("m"), "user", tinyModel).status)
	const path, body = acme + "/models/m:prepare", `{"precision": "BF16"}`
	failing := s.another(func(o *Options) { o.Idempotency = lostResponses{o.Idempotency} })
	first := failing.keyed("k", "POST", path, "user", body)
	require.Equal(t, 200, first.status, "%s", first.body)
	require.NoError(t, s.world.WaitFor(t.Context(), s.events()))
	s.quota(domain.QuotaStorageBytes, s.usage(domain.QuotaStorageBytes))
	s.clock.add(request.ClaimTime)
	after := s.events()
	second := s.keyed("k", "POST", path, "user", body)
	require.Equal(t, 200, second.status, "%s", second.body)
	require.Equal(t, after, s.events(), "executed once")
	exceeded(t, s.call("POST", path, "user", `{"precision": "FP16"}`), domain.QuotaStorageBytes)
}

// TestMissingCheckpointNamesItsList checks that the error of a missing checkpoint names the request
// that lists the checkpoints of the job.
func TestMissingCheckpointNamesItsList(t *testing.T) {
	s := checkpointHarness(t)
	a := s.call("POST", strings.Replace(promotePath, "1-200", "1-7", 1), "user", `{"modelId": "kept"}`)
	require.Equal(t, 404, a.status)
	require.Contains(t, string(a.body), "GET "+strings.TrimSuffix(promotePath, "/1-200:promote"))
}

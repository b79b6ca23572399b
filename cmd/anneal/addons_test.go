package main_test

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

const shared = "accounts/default/deployments/shared"

// TestAddonsShareADeployment checks that one deployment of a base model serves two adapters at the
// same time, each with its own responses. Loading and unloading the adapters under traffic makes no
// request fail.
func TestAddonsShareADeployment(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	user := s.user()
	user.dataset("codes", 40)
	for id, change := range map[string]object{"one": {"learningRate": 0.01},
		"two": {"loraRank": 4, "learningRate": 0.02}} {
		job := jobOn("codes", 1)
		for field, value := range change {
			job[field] = value
		}
		user.must(http.MethodPost, "/supervisedFineTuningJobs?supervisedFineTuningJobId="+id, job)
	}
	for _, id := range []string{"one", "two"} {
		user.until("/supervisedFineTuningJobs/"+id, "state", "JOB_STATE_COMPLETED")
	}
	s.run("deployment", "create", "shared", "--model", baseModel, "--addons", "--watch").ok(t)
	require.Contains(t, s.run("addon", "load", "one", "--model", "one", "--deployment", "shared", "--watch").ok(t),
		"DEPLOYED")
	user.must(http.MethodPost, "/deployedModels?deployedModelId=two",
		object{"model": "accounts/default/models/two", "deployment": shared})
	user.until("/deployedModels/two", "state", "DEPLOYED")
	require.EqualValues(t, 2, user.get("/deployments/shared")["numPeftDeviceCached"])

	want := map[string]string{baseModel + "#" + shared: "", "accounts/default/models/one": "",
		"accounts/default/models/two": ""}
	distinct := map[string]bool{}
	for model := range want {
		want[model] = user.completionText(model)
		distinct[want[model]] = true
	}
	require.Len(t, distinct, 3, "each adapter has its own response: %q", want)
	require.Equal(t, want[baseModel+"#"+shared], user.completionText(shared),
		"the deployment itself serves its base model")

	t.Run("each adapter responds as on a separate deployment", func(t *testing.T) {
		user.deploy("alone", object{"baseModel": "accounts/default/models/one"})
		require.Equal(t, want["accounts/default/models/one"],
			user.completionText("accounts/default/models/one#accounts/default/deployments/alone"))
		require.Equal(t, want["accounts/default/models/one"], user.completionText("accounts/default/models/one#"+shared))
		user.must(http.MethodDelete, "/deployments/alone?hard=true&ignoreChecks=true", nil)
	})
	t.Run("they are loaded and unloaded under traffic", func(t *testing.T) {
		delete(want, "accounts/default/models/two")
		stop := traffic(t, user, want)
		for range 3 {
			s.run("addon", "unload", "two").ok(t)
			eventually(t, "it is unloaded", func() bool {
				status, _, err := user.do(http.MethodGet, "/deployedModels/two", nil)
				return err == nil && status == http.StatusNotFound
			})
			status, answer, err := user.complete("accounts/default/models/two", "hello")
			require.NoError(t, err)
			require.Equal(t, http.StatusNotFound, status, "%v", answer)
			s.run("addon", "load", "two", "--model", "two", "--deployment", "shared", "--default", "--watch").ok(t)
			require.Equal(t, user.completionText("accounts/default/models/two"), user.completionText(shared),
				"the default adapter serves requests to the deployment")
		}
		require.Greater(t, stop(), 10)
	})
	t.Run("they are deleted with their deployment", func(t *testing.T) {
		user.must(http.MethodDelete, "/deployments/shared?ignoreChecks=true", nil)
		eventually(t, "all are deleted", func() bool { return len(user.list("/deployedModels", "deployedModels")) == 0 })
	})
	s.checkEvents()
	require.Zero(t, s.end())
}

// completionText returns a model's completion at temperature 0.
func (c caller) completionText(model string) string {
	c.t.Helper()
	status, answer, err := c.complete(model, "Packing code for 15 pink chairs, customer Rosa")
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, status, "%s: %v", model, answer)
	return textOf(c.t, answer)
}

// traffic sends requests to every model repeatedly, and requires the same response each time. stop
// ends the traffic and returns the number of requests.
func traffic(t *testing.T, user caller, want map[string]string) (stop func() int) {
	var asked atomic.Int64
	over := make(chan struct{})
	var all sync.WaitGroup
	for model, text := range want {
		all.Go(func() {
			for {
				status, answer, err := user.complete(model, "Packing code for 15 pink chairs, customer Rosa")
				if err != nil || status != http.StatusOK || textOf(t, answer) != text {
					t.Error(fmt.Errorf("%s: response %d %v, %w", model, status, answer, err))
					return
				}
				asked.Add(1)
				select {
				case <-over:
					return
				default:
				}
			}
		})
	}
	return func() int {
		close(over)
		all.Wait()
		return int(asked.Load())
	}
}

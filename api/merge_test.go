package api

import (
	"fmt"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/domain"
)

// TestConcurrentUpdatesAreMerged checks that all concurrent updates of different fields of one
// resource take effect.
func TestConcurrentUpdatesAreMerged(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("POST", acme+"/models", "user", `{"modelId": "m"}`).status)
	var all sync.WaitGroup
	for range 8 {
		for _, field := range []string{"displayName", "description"} {
			all.Go(func() {
				a := s.call("PATCH", acme+"/models/m", "user", fmt.Sprintf(`{%q: "new"}`, field))
				s.continues(t.Context(), fmtError(a))
			})
		}
	}
	all.Wait()
	model := s.ok("GET", acme+"/models/m", "").json(t)
	require.Equal(t, "new", model["displayName"])
	require.Equal(t, "new", model["description"])
}

func fmtError(a response) error {
	if a.status == http.StatusOK {
		return nil
	}
	return fmt.Errorf("status %d: %s", a.status, a.body)
}

// TestStaleIntentsAreNotRecorded checks that an intent is not recorded when its row has changed
// since the intent was computed.
func TestStaleIntentsAreNotRecorded(t *testing.T) {
	s := newHarness(t, request.Limits{})
	require.Equal(t, 200, s.call("POST", acme+"/models", "user", `{"modelId": "m"}`).status)
	name := domain.NewName("acme", domain.Models.Collection, "m")
	_, version := s.world.Row(name)
	update := domain.Intend(domain.Models, name, domain.UpdateModel{ModelSpec: domain.ModelSpec{DisplayName: "x",
		Kind: domain.BaseModel}})
	require.ErrorIs(t, s.carryOut(t.Context(), update.At(version+1)), domain.ErrStale)
	require.NoError(t, s.carryOut(t.Context(), update.At(version)))
}

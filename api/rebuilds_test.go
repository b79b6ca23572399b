package api

import (
	"time"

	"anneal/api/rest"
	"anneal/domain"
	"anneal/projections"
)

// A fakeRebuilds implements rest.Rebuilds with one rebuild, which runs until it is cancelled or
// listed, and finds one difference.
type fakeRebuilds struct{ one *rest.Rebuild }

const rebuildID = "r1893553445000000"

var rebuildTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func (r *fakeRebuilds) Start() (rest.Rebuild, error) {
	r.one = &rest.Rebuild{ID: rebuildID, State: rest.RebuildRunning, Status: domain.Status{Code: domain.OK.String()},
		StartTime: &rebuildTime, LogEvents: 2}
	return *r.one, nil
}

func (r *fakeRebuilds) Cancel(id string) (rest.Rebuild, error) {
	if r.one == nil || r.one.ID != id {
		return rest.Rebuild{}, domain.Errorf(domain.NotFound, "rebuild %q not found", id)
	}
	return *r.one, nil
}

func (r *fakeRebuilds) All() []rest.Rebuild {
	if r.one == nil {
		return nil
	}
	done := *r.one
	done.State, done.EndTime, done.FoldedEvents = rest.RebuildCompleted, &rebuildTime, done.LogEvents
	table := func(sha256 string) *projections.Digest {
		return &projections.Digest{Position: 2, EventID: "e2", SHA256: sha256,
			Tables: map[string]projections.TableDigest{"accounts": {Rows: 1, SHA256: sha256}}}
	}
	done.Served, done.Folded = table("0a0b"), table("0c0d")
	done.Differences = []projections.Difference{{Name: "accounts/acme", Kind: projections.DiffersChanged}}
	done.DifferenceCount = len(done.Differences)
	return []rest.Rebuild{done}
}

func rebuildRows() []row {
	const create = "POST /v1/rebuilds operator"
	return []row{
		{id: "createRebuild", request: create},
		{id: "listRebuilds", scene: marked(create), request: "GET /v1/rebuilds operator"},
		{id: "cancelRebuild", scene: marked(create), request: "POST /v1/rebuilds/" + rebuildID + ":cancel operator"},
	}
}

package rest

import (
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Rebuilds rebuilds the world of this control plane from the log, and compares it with the world
// that is served.
type Rebuilds interface {
	// Start starts a rebuild. It returns an error if one is running.
	Start() (Rebuild, error)
	// Cancel cancels the rebuild with the given ID, if it is running.
	Cancel(id string) (Rebuild, error)
	// All returns the last rebuilds, newest first.
	All() []Rebuild
}

// States of a rebuild.
const (
	RebuildRunning   = "RUNNING"
	RebuildCompleted = "COMPLETED"
	RebuildFailed    = "FAILED"
	RebuildCancelled = "CANCELLED"
)

// A Rebuild describes a rebuild of the world from the log. Served is the digest of the world before
// the rebuild, Folded that of the rebuilt world; they are nil until the rebuild is completed.
type Rebuild struct {
	ID           string        `json:"id"`
	Plane        string        `json:"controlPlane,omitempty"`
	State        string        `json:"state"`
	Status       domain.Status `json:"status"`
	StartTime    *time.Time    `json:"startTime"`
	EndTime      *time.Time    `json:"endTime,omitempty"`
	FoldedEvents domain.Count  `json:"foldedEvents"`
	LogEvents    domain.Count  `json:"logEvents"`

	Served          *projections.Digest      `json:"served,omitempty"`
	Folded          *projections.Digest      `json:"folded,omitempty"`
	DifferenceCount int                      `json:"differenceCount"`
	Differences     []projections.Difference `json:"differences,omitempty"`
}

var _ = register(rebuildOperations)

func rebuildOperations(s *Service) []request.Operation {
	all := []request.Operation{
		{ID: "createRebuild", Method: "POST", Path: "/v1/rebuilds",
			Summary: "Rebuild the state of the control plane from the log", Gate: request.ByOperator,
			Description: "Starts a rebuild, and responds before it is complete; list the rebuilds to see its state. All " +
				"events are replayed into new tables, while the server continues to use the present ones. Then the new tables " +
				"replace the present ones, and the differences between the two are reported. Each control plane has its own " +
				"tables and must be rebuilt separately.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Rebuild](),
			Handle: s.handle(createRebuild)},
		{ID: "listRebuilds", Method: "GET", Path: "/v1/rebuilds", Summary: "List the last rebuilds of the control plane",
			Gate: request.ByOperator, Response: reflect.TypeFor[rebuildList](), Handle: s.handle(listRebuilds)},
		{ID: "cancelRebuild", Method: "POST", Path: "/v1/rebuilds/{id}:cancel", Summary: "Cancel a rebuild",
			Gate: request.ByOperator, Description: "The control plane continues to use its present tables.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Rebuild](), Handle: s.handle(cancelRebuild)},
	}
	return withTag("rebuilds", all)
}

type rebuildList struct {
	Rebuilds []Rebuild `json:"rebuilds"`
}

func createRebuild(c *call) (any, error) {
	if err := readRebuildVerb(c); err != nil {
		return nil, err
	}
	one, err := c.Rebuilds.Start()
	if err != nil {
		return nil, err
	}
	return one, nil
}

func cancelRebuild(c *call) (any, error) {
	if err := readRebuildVerb(c); err != nil {
		return nil, err
	}
	one, err := c.Rebuilds.Cancel(c.PathValue("id"))
	if err != nil {
		return nil, err
	}
	return one, nil
}

// readRebuildVerb reads a request to start or cancel a rebuild, which has no settings. It returns
// an error if the request is invalid, or if this server cannot make rebuilds.
func readRebuildVerb(c *call) error {
	p := c.Params()
	if err := p.ReadVerb(&struct{}{}); err != nil {
		return err
	}
	if err := p.Err(); err != nil {
		return err
	}
	if c.Rebuilds == nil {
		return domain.Errorf(domain.Unimplemented, "this server is not configured to rebuild its state from the log")
	}
	return nil
}

func listRebuilds(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	list := rebuildList{Rebuilds: []Rebuild{}}
	if c.Rebuilds != nil {
		list.Rebuilds = append(list.Rebuilds, c.Rebuilds.All()...)
	}
	return list, nil
}

// rebuildRules constrains the values of fields of rebuilds.
var rebuildRules = map[string]wire.Rule{
	"Rebuild.state":   wire.OneOf(RebuildRunning, RebuildCompleted, RebuildFailed, RebuildCancelled),
	"Difference.kind": wire.OneOf(projections.DiffersChanged, projections.DiffersMissing, projections.DiffersExtra),
}

var rebuildTexts = map[string]string{
	"Rebuild.id":           "ID of the rebuild.",
	"Rebuild.controlPlane": "ID of the control plane whose state is rebuilt.",
	"Rebuild.startTime":    "Time at which the rebuild began.",
	"Rebuild.endTime":      "Time at which the rebuild ended; absent while it is running.",
	"foldedEvents":         "Number of events that the rebuild has replayed so far.",
	"logEvents":            "Number of events in the log at present, all of which the rebuild must replay.",
	"Rebuild.served":       "Digest of the state before the rebuild, at the log position at which it was replaced.",
	"Rebuild.folded":       "Digest of the state that was rebuilt from the log, at the same log position.",
	"differenceCount":      "Number of resources that were different in the state before the rebuild.",
	"differences":          "The resources that were different, ordered by collection and name; at most 1000.",
	"Difference.name":      "Name of the resource; waits means the history of how long jobs waited.",
	"Difference.kind": "CHANGED: the content of the resource was different before the rebuild. MISSING: the state " +
		"before the rebuild lacked the resource. EXTRA: it had a resource that the log does not have.",
	"RebuildList.rebuilds": "The last 16 rebuilds, newest first.",
}

var rebuildTypeTexts = map[string]string{
	"Rebuild":     "A rebuild of a control plane's state from the log.",
	"Difference":  "A resource that was different in the state before a rebuild than in the log.",
	"RebuildList": "The last rebuilds of a control plane.",
}

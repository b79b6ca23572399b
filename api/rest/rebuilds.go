package rest

import (
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Rebuilds rebuilds the state of the control plane from the log.
type Rebuilds interface {
	// Start starts a rebuild.
	Start() (Rebuild, error)
	// Cancel cancels the rebuild with an ID, if it is running.
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

// A Rebuild describes a rebuild. Served and Folded are nil until it is completed.
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
			Description: "Starts to replay all events into new tables while the present ones are used, and responds; list the " +
				"rebuilds to see when it is complete. The tables are then replaced at one position, and compared. Each " +
				"control plane has its own tables.",
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Rebuild](), Handle: s.handle(createRebuild)},
		{ID: "listRebuilds", Method: "GET", Path: "/v1/rebuilds", Summary: "List the last rebuilds of the control plane",
			Gate: request.ByOperator, Response: reflect.TypeFor[rebuildList](), Handle: s.handle(listRebuilds)},
		{ID: "cancelRebuild", Method: "POST", Path: "/v1/rebuilds/{id}:cancel", Summary: "Cancel a rebuild",
			Gate: request.ByOperator, Description: "The control plane keeps its present tables.",
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

// readRebuildVerb reads a request without a body.
func readRebuildVerb(c *call) error {
	p := c.Params()
	if err := p.ReadVerb(&struct{}{}); err != nil {
		return err
	}
	if err := p.Err(); err != nil {
		return err
	}
	if c.Rebuilds == nil {
		return domain.Errorf(domain.Unimplemented, "this server makes no rebuilds")
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

// rebuildRules constrain the fields of rebuilds.
var rebuildRules = map[string]wire.Rule{
	"Rebuild.state":   wire.OneOf(RebuildRunning, RebuildCompleted, RebuildFailed, RebuildCancelled),
	"Difference.kind": wire.OneOf(projections.DiffersChanged, projections.DiffersMissing, projections.DiffersExtra),
}

var rebuildTexts = map[string]string{
	"Rebuild.id":           "ID of the rebuild.",
	"Rebuild.controlPlane": "ID of the control plane whose state is rebuilt.",
	"Rebuild.startTime":    "Time at which the rebuild began.",
	"Rebuild.endTime":      "Time at which the rebuild ended.",
	"foldedEvents":         "Number of events that the rebuild has replayed.",
	"logEvents":            "Number of events that it must replay at present.",
	"served":               "Digest of the former state, at the position at which it was replaced.",
	"folded":               "Digest of the state that the log gives, at the same position.",
	"differenceCount":      "Number of resources whose former state differed from the log.",
	"differences":          "The resources that differed, ordered by collection and name; at most 1000.",
	"Difference.name":      "Name of the resource; waits is the history of waits of jobs.",
	"Difference.kind": "CHANGED: the former state had other content; MISSING: it lacked the resource; EXTRA: it had a " +
		"resource that the log does not have.",
	"RebuildList.rebuilds": "The last 16 rebuilds, newest first.",
}

var rebuildTypeTexts = map[string]string{
	"Rebuild":     "A rebuild of the state of a control plane.",
	"Difference":  "A resource whose former state differed from the log.",
	"RebuildList": "The last rebuilds.",
}

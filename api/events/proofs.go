package events

import (
	"context"
	"encoding/json"
	"net/http"
	"reflect"
	"strconv"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/transparency"
)

// Proofs proves that events are in the log, with the Merkle tree of the log.
type Proofs interface {
	// Prove returns a bundle that proves that the log contains the event at the position. If oldSize
	// is positive, the bundle also proves that the log still begins with the same first oldSize
	// events. payload states whether the bundle contains the event's data.
	Prove(ctx context.Context, position, oldSize uint64, payload bool) (transparency.Bundle, error)
	// Resource returns the newest checkpoint, a tile or an entry bundle of the log's Merkle tree,
	// by its path in C2SP's tlog-tiles.
	Resource(path string) (transparency.Resource, error)
}

// ProofBundle describes transparency.Bundle, the response of the operations that prove an event,
// for the API reference.
type ProofBundle struct {
	Format string         `json:"format"`
	Event  DisclosedEvent `json:"event"`
	Growth []GrowthStep   `json:"growth,omitempty"`
	Proof  string         `json:"proof"`
}

// DisclosedEvent describes transparency.Disclosure for the API reference.
type DisclosedEvent struct {
	Position          domain.Count     `json:"position"`
	Subject           string           `json:"subject"`
	Attributes        []EventAttribute `json:"attributes"`
	EnvelopeSalt      string           `json:"envelopeSalt"`
	AccountSequence   domain.Count     `json:"accountSequence"`
	PreviousLeaf      string           `json:"previousLeaf"`
	Payload           string           `json:"payload,omitempty"`
	PayloadSalt       string           `json:"payloadSalt,omitempty"`
	PayloadCommitment string           `json:"payloadCommitment,omitempty"`
}

// EventAttribute describes integrity.Attribute for the API reference.
type EventAttribute struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// GrowthStep describes transparency.Step for the API reference.
type GrowthStep struct {
	From     domain.Count `json:"from"`
	FromRoot string       `json:"fromRoot"`
	To       domain.Count `json:"to"`
	ToRoot   string       `json:"toRoot"`
	Hashes   []string     `json:"hashes"`
}

var sinceParameter = request.Parameter{Name: "since", Kind: wire.Int,
	Description: "Size (number of events) of an earlier checkpoint: the bundle then also proves that the log has only " +
		"grown since then."}

// proofOperations returns the operations that prove events, and those that serve the log's Merkle
// tree by C2SP's tlog-tiles.
func (s *Service) proofOperations() []request.Operation {
	const description = "The response is a bundle that `anneal log check` verifies offline with the log's public key. " +
		"An event can be proven about a second after it is recorded, when a checkpoint includes it. If the data of an " +
		"event contain secrets, or names of nodes that the caller may not see, the bundle has a commitment to the data " +
		"instead of the data."
	gate := request.ByOperator
	if s != nil && s.PublicLog { // s is nil if the operations are only listed for the OpenAPI document
		gate = request.Everyone
	}
	const access = "If the server is started with --public-log, no API key is needed."
	bundle := reflect.TypeFor[ProofBundle]()
	return []request.Operation{
		{ID: "proveEvent", Method: "GET", Path: "/v1/accounts/{account}/events/{position}:prove", Tag: "events",
			Summary: "Prove an event of an account", Description: description, Permission: request.FollowEvents,
			Query: []request.Parameter{sinceParameter}, Response: bundle,
			Handle: func(c *request.Call) (any, error) { return s.prove(c, c.Account) }},
		{ID: "proveAnyEvent", Method: "GET", Path: "/v1/events/{position}:prove", Tag: "events",
			Summary: "Prove an event of any account", Description: description, Gate: request.ByOperator,
			Query: []request.Parameter{sinceParameter}, Response: bundle,
			Handle: func(c *request.Call) (any, error) { return s.prove(c, "") }},
		{ID: "getLogCheckpoint", Method: "GET", Path: "/log/checkpoint", Tag: "events",
			Summary:     "Read the newest signed checkpoint of the log",
			Description: "A signed note in the format of C2SP's tlog-checkpoint, with the cosignatures of witnesses. " + access,
			Gate:        gate, Media: "text/plain",
			Handle: func(c *request.Call) (any, error) { return s.logFile(c, "checkpoint") }},
		{ID: "getLogTile", Method: "GET", Path: "/log/tile/{path}", Slashes: true, Tag: "events",
			Summary: "Read a tile or an entry bundle of the log",
			Description: "The paths follow C2SP's tlog-tiles: LEVEL/INDEX for a tile, entries/INDEX for an entry bundle, " +
				"and .p/WIDTH after a partial tile. " + access,
			Gate: gate, Media: "application/octet-stream",
			Handle: func(c *request.Call) (any, error) { return s.logFile(c, "tile/"+c.PathValue("path")) }},
	}
}

// prove returns the bundle that proves an event of the account; of any account if account is "".
func (s *Service) prove(c *request.Call, account string) (any, error) {
	p := c.Params()
	since := p.Number("since")
	p.Violations.Require(since >= 0, "since", "must be the size of an earlier checkpoint, at least 1")
	if err := p.Err(); err != nil {
		return nil, err
	}
	position, err := strconv.ParseUint(c.PathValue("position"), 10, 63)
	if err != nil {
		return nil, domain.Errorf(domain.NotFound, "event %s not found: the path needs the position of an event, a whole "+
			"number",
			wire.Quote(c.PathValue("position")))
	}
	if s.Proofs == nil {
		return nil, errNoProofs
	}
	e, err := c.Log.At(c.Ctx, position)
	if err != nil {
		return nil, beyondEnd(c, position, err)
	}
	h := s.historyOf(c, "")
	if account != "" && (e.Name.Account() != account || !h.visible(e)) {
		return nil, domain.Errorf(domain.NotFound, "accounts/%s has no event at position %d", account, position)
	}
	if h.masked(e).Actor != e.Actor {
		return nil, errNamesNode
	}
	return s.Proofs.Prove(c.Ctx, position, uint64(since), h.isDisclosed(e))
}

// beyondEnd returns the error for an event that cannot be read at a position. If the position is
// after the end of the log, the error states the last position; otherwise it is err.
func beyondEnd(c *request.Call, position uint64, err error) error {
	if domain.CodeOf(err) != domain.NotFound {
		return err
	}
	if position == 0 {
		return domain.Errorf(domain.NotFound, "event at position 0 not found: the position of the first event is 1")
	}
	last, lastErr := c.Log.Last(c.Ctx)
	if lastErr != nil || position <= last.Position {
		return err
	}
	return domain.Errorf(domain.NotFound, "event at position %d not found: the position of the last event is %d",
		position, last.Position)
}

var errNoProofs = domain.Errorf(domain.Unimplemented, "this server cannot prove events, because it does not keep a "+
	"Merkle tree of the log")

// errNamesNode is the error for an event of an earlier version whose actor is a node: a proof
// discloses all attributes of an event.
var errNamesNode = &domain.Error{Code: domain.FailedPrecondition, Reason: "EVENT_NAMES_NODE", Message: "the proof " +
	"of an event has all of its attributes, and the actor of this one, which an earlier version of anneal recorded, " +
	"is the name of a node: ask the operator for the proof"}

// isDisclosed reports whether the API shows the data of an event unchanged to the caller, because
// they contain no secrets and no names of nodes.
func (h history) isDisclosed(e eventlog.Event) bool {
	var stored, shown any
	if json.Unmarshal(e.Data, &stored) != nil || json.Unmarshal(h.shown(e).Data, &shown) != nil {
		return false
	}
	return reflect.DeepEqual(stored, shown)
}

// logFile responds with a checkpoint, a tile or an entry bundle.
func (s *Service) logFile(c *request.Call, path string) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	if s.Proofs == nil {
		return nil, errNoProofs
	}
	found, err := s.Proofs.Resource(path)
	if err != nil {
		return nil, err
	}
	header := c.Writer.Header()
	header.Set("Content-Type", found.Media)
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Content-Length", strconv.Itoa(len(found.Content)))
	header.Set("Cache-Control", "no-cache")
	if found.Immutable {
		header.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	c.Writer.WriteHeader(http.StatusOK)
	_, _ = c.Writer.Write(found.Content) // an error means that the client has disconnected
	return nil, nil
}

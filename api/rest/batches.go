package rest

import (
	"cmp"
	"reflect"
	"slices"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

const (
	batchObject        = "batch"
	defaultListBatches = 20
	maxListedBatches   = 100
)

// batches declares the kind of batches. They have no operations except those of the OpenAI API.
var batches = &resource[domain.Batch, Batch]{kind: domain.Batches, noun: "batch"}

type batchRow = projections.Row[domain.Batch]

func batchOperations(s *Service) []request.Operation {
	const all, one = "/v1/batches", "/v1/batches/{id}"
	batch := reflect.TypeFor[Batch]()
	operations := []request.Operation{
		{ID: "createBatch", Method: "POST", Path: all, Summary: "Create a batch (OpenAI-compatible)",
			Permission: request.Write,
			Description: "Sends the requests in a file to a model at low priority: other requests to the model are served " +
				"first. The response is sent before the requests in the file are validated. All of them must name the same model.",
			Body: reflect.TypeFor[BatchBody](), Required: []string{"input_file_id", "endpoint", "completion_window"},
			Response: batch, Handle: s.handle(createBatch)},
		{ID: "listBatches", Method: "GET", Path: all, Summary: "List the batches (OpenAI-compatible)",
			Permission: request.Read, Description: "The batches of the caller's account, newest first.",
			Query:    []request.Parameter{afterParameter(), limitParameter("The default is 20, the maximum 100.")},
			Response: reflect.TypeFor[BatchList](), Handle: s.handle(listBatches)},
		{ID: "getBatch", Method: "GET", Path: one, Summary: "Read a batch (OpenAI-compatible)",
			Permission: request.Read, Response: batch, Handle: s.handle(getBatch)},
		{ID: "cancelBatch", Method: "POST", Path: one + "/cancel", Summary: "Cancel a batch (OpenAI-compatible)",
			Permission: request.Write,
			Description: "The response is sent once the cancellation is recorded. Then the requests in progress are " +
				"interrupted, and the results so far are stored as files.",
			Body: request.NoBody, BodyOptional: true, ReleasesResources: true, Response: batch,
			Handle: s.handle(cancelBatch)},
	}
	for i := range operations {
		operations[i].Tag, operations[i].Gate = "batches", request.InOwnAccount
	}
	return operations
}

var _ = register(batchOperations)

// foundBatch returns the row of the batch that the path names.
func foundBatch(c *call) (*batchRow, error) {
	row, ok := c.View().Batches.Get(domain.NewName(c.Account, domain.Batches.Collection, c.PathValue("id")))
	if !ok {
		return nil, request.NotFoundReason("NOT_FOUND",
			"there is no batch %s: list the batches with GET /v1/batches", wire.Quote(c.PathValue("id")))
	}
	return row, nil
}

func getBatch(c *call) (any, error) {
	row, err := readRequest(c, foundBatch)
	if err != nil {
		return nil, err
	}
	return batchOf(row), nil
}

func listBatches(c *call) (any, error) {
	p := c.Params()
	page, more := pageOf(p, slices.Collect(c.View().Batches.Newest(c.Account)),
		func(row *batchRow) string { return row.Name.ID() }, defaultListBatches, maxListedBatches)
	if err := p.Err(); err != nil {
		return nil, err
	}
	list := BatchList{Object: listObject, Data: []Batch{}, HasMore: more}
	for _, row := range page {
		list.Data = append(list.Data, batchOf(row))
	}
	list.FirstID, list.LastID = ends(list.Data, func(b Batch) string { return b.ID })
	return list, nil
}

func createBatch(c *call) (any, error) {
	p := c.Params()
	_, normal, err := p.Body(reflect.TypeFor[BatchBody](), false)
	if err != nil {
		return nil, err
	}
	var body BatchBody
	if err := normal.Fill(&body); err != nil {
		return nil, err
	}
	name := domain.NewName(c.Account, domain.Batches.Collection, compatibleID(c, "batch-"))
	intent := domain.Intend(domain.Batches, name, domain.Command[domain.Batch](domain.CreateBatch{
		BatchSpec: domain.BatchSpec{Input: batchInput(c, p, body.InputFileID), Endpoint: body.Endpoint,
			Window: body.CompletionWindow, Metadata: body.Metadata},
		CreatedBy: string(c.Principal.Key)}))
	earlier, err := c.Recorded(name)
	if err != nil {
		return nil, err
	}
	// serializes the check of the limit and the creation, so that concurrent requests do not exceed
	// the limit
	c.creatingBatch.Lock()
	defer c.creatingBatch.Unlock()
	if earlier.Position() == 0 { // no earlier attempt of this request has created the batch
		if err := cmp.Or(allViolations(c, intent, p, unprefixed), requireBatchCapacity(c)); err != nil {
			return nil, err
		}
	}
	change, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	row, err := batches.changed(c, change)
	if err != nil {
		return nil, err
	}
	return batchOf(row), nil
}

// batchInput returns the resource name of the batch file with an ID. It adds a violation if the
// file does not exist, or is not for batches.
func batchInput(c *call, p *request.Params, id string) domain.Name {
	if id == "" {
		return "" // the command's Decide rejects an empty name
	}
	name := domain.NewName(c.Account, domain.BatchFiles.Collection, id)
	row, ok := c.View().BatchFiles.Get(name)
	_, rows := c.View().Datasets.Get(domain.NewName(c.Account, domain.Datasets.Collection, id))
	purpose := purposeFineTune
	if ok {
		purpose = row.State.Purpose
	}
	switch {
	case !ok && !rows:
		p.Violations.Add("input_file_id", "there is no file %s: list the files with GET /v1/files", wire.Quote(id))
	case purpose != domain.PurposeBatch:
		p.Violations.Add("input_file_id", "the file %s has the purpose %s: upload it again with the purpose "+
			"%s", wire.Quote(id),
			purpose, domain.PurposeBatch)
	}
	return name
}

// requireBatchCapacity returns an error if the account has the maximum number of batches that have
// not ended.
func requireBatchCapacity(c *call) error {
	c.Refresh()
	live := 0
	for row := range c.View().Batches.In(c.Account) {
		if row.State.Live() {
			live++
		}
	}
	if live < domain.MaxLiveBatches {
		return nil
	}
	f := domain.Errorf(domain.ResourceExhausted,
		"accounts/%s has %d batches that have not ended, which is the limit: wait until one ends, or cancel one", c.Account,
		live)
	f.Reason = "TOO_MANY_BATCHES"
	return f
}

func cancelBatch(c *call) (any, error) {
	p := c.Params()
	if err := p.ReadVerb(&struct{}{}); err != nil {
		return nil, err
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := foundBatch(c)
	if err != nil {
		return nil, err
	}
	change, err := c.Do(domain.Intend(domain.Batches, row.Name, domain.Command[domain.Batch](domain.CancelBatch{})))
	if err != nil {
		return nil, err
	}
	if row, err = batches.changed(c, change); err != nil {
		return nil, err
	}
	return batchOf(row), nil
}

// batchOf returns a batch in the format of the OpenAI API.
func batchOf(row *batchRow) Batch {
	b := &row.State
	expires := b.ExpireTime.Unix()
	out := Batch{ID: row.Name.ID(), Object: batchObject, Endpoint: b.Endpoint, InputFileID: b.Input.ID(),
		CompletionWindow: b.Window, Status: b.State, CreatedAt: row.CreateTime.Unix(), ExpiresAt: &expires,
		InProgressAt: unixTime(b.StartTime), FinalizingAt: unixTime(b.FinalTime), CancellingAt: unixTime(b.CancelTime),
		RequestCounts: BatchRequestCounts(b.Counts), Metadata: b.Metadata, OutputFileID: idOf(b.Results.Output),
		ErrorFileID: idOf(b.Results.Errors)}
	if out.Metadata == nil {
		out.Metadata = map[string]string{}
	}
	if b.Model != "" {
		out.Model = &b.Model
	}
	switch end := unixTime(b.EndTime); b.State {
	case domain.BatchCompletedState:
		out.CompletedAt = end
	case domain.BatchExpiredState:
		out.ExpiredAt = end
	case domain.BatchCancelledState:
		out.CancelledAt = end
	case domain.BatchFailedState:
		out.FailedAt = end
		out.Errors = &BatchErrors{Object: listObject, Data: []BatchError{}}
		for _, f := range b.Failures {
			one := BatchError{Code: f.Code, Message: f.Message}
			if f.Line > 0 {
				one.Line = &f.Line
			}
			if f.Param != "" {
				one.Param = &f.Param
			}
			out.Errors.Data = append(out.Errors.Data, one)
		}
	}
	return out
}

// unixTime returns a time in Unix seconds; nil if t is nil.
func unixTime(t *time.Time) *int64 {
	if t == nil {
		return nil
	}
	seconds := t.Unix()
	return &seconds
}

// idOf returns the ID in a resource name; nil if the name is "".
func idOf(name domain.Name) *string {
	if name == "" {
		return nil
	}
	id := name.ID()
	return &id
}

package events

import (
	"context"
	"errors"
	"fmt"
	"math"
	"reflect"
	"time"

	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/domain"
	"anneal/eventlog/audit"
	"anneal/eventlog/secrets"
	"anneal/projections"
	"anneal/projections/query"
)

// An AuditRecord is an audit.Record as the API returns it.
type AuditRecord audit.Record

var auditFields = query.FieldsOf[AuditRecord]().WithValues(openapi.Values(rules))

func purposes() (all []string) {
	for _, purpose := range secrets.Purposes {
		all = append(all, string(purpose))
	}
	return all
}

// audited wraps an audit record as the domain.State of a row, so that query.List, which takes rows,
// can filter and order the records.
type audited struct{ audit.Record }

// Exists implements domain.State.
func (audited) Exists() bool { return true }

func renderRecord(row *projections.Row[audited], out *AuditRecord) {
	*out = AuditRecord(row.State.Record)
}

const (
	// maxAuditLists bounds the concurrent lists of audit records of an account, because each list
	// reads all records of the account.
	maxAuditLists = 2
	// flushTime bounds how long a list waits until this control plane has stored its latest
	// records.
	flushTime = time.Second
)

func (s *Service) auditOperations() []request.Operation {
	const description = "The newest record is first. The server keeps the last 20,000 records of an account for 90 " +
		"days. Records are not part of the log: the newest can be lost if a server fails."
	list := func(op request.Operation, all bool) request.Operation {
		op.Method, op.Tag, op.Description, op.Query = "GET", "events", description, request.ListParameters
		op.Response = request.PageType("auditRecords", reflect.TypeFor[AuditRecord]())
		op.Handle = func(c *request.Call) (any, error) { return s.listRecords(c, all) }
		return op
	}
	return []request.Operation{
		list(request.Operation{ID: "listAllAuditRecords", Path: "/v1/auditRecords",
			Summary: "List the audit records of all accounts", Gate: request.ByOperator}, true),
		list(request.Operation{ID: "listAuditRecords", Path: "/v1/accounts/{account}/auditRecords",
			Summary: "List the audit records of an account", Permission: request.ManageSecrets}, false),
	}
}

func (s *Service) listRecords(c *request.Call, all bool) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c, p, reflect.TypeFor[AuditRecord]())
	leave, ok := c.Busy.Enter("audit records of "+c.Principal.Account, maxAuditLists)
	if !ok {
		return nil, &domain.Error{Code: domain.ResourceExhausted, Reason: "TOO_MANY_AUDIT_LISTS",
			Message: fmt.Sprintf("accounts/%s has %d lists of audit records in progress, which is the limit: "+
				"wait until one ends", c.Principal.Account, maxAuditLists)}
	}
	defer leave()
	flushing, cancel := context.WithTimeout(c.Ctx, flushTime)
	_ = s.Audit.Flush(flushing) // a list without the latest records is still correct
	cancel()
	var readErr error
	var damaged []uint64 // positions in the stream of the records that cannot be decoded
	rows := func(yield func(*projections.Row[audited]) bool) {
		for record, err := range s.Audit.Read(c.Ctx, c.Account, all) {
			var unreadable audit.DamagedError
			if errors.As(err, &unreadable) {
				damaged = append(damaged, unreadable.Position)
				continue
			}
			if err != nil {
				readErr = err
				return
			}
			// query.List orders rows by name: this name puts the newest record first
			name := domain.Name(fmt.Sprintf("%020d", math.MaxUint64-record.Sequence))
			hideNode(&record, request.NodeMask(c))
			if !yield(&projections.Row[audited]{Name: name, State: audited{record}}) {
				return
			}
		}
	}
	page, err := query.List(rows, renderRecord, auditFields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	if readErr != nil {
		return nil, fmt.Errorf("read audit records: %w", readErr)
	}
	if len(damaged) > 0 {
		c.Warn("%d damaged audit records are left out, the first at position %d of the stream %s", len(damaged), damaged[0],
			audit.Stream)
	}
	return request.ListResponse("auditRecords", page.Items, page.NextPageToken, page.TotalSize, m)
}

package request

import (
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"

	"anneal/api/wire"
	"anneal/disk"
	"anneal/domain"
)

// VerbOf returns the custom verb of a path, after the colon of its last segment; "" without one.
func VerbOf(of string) string {
	_, verb, _ := strings.Cut(path.Base(of), ":")
	return verb
}

// An Operation is one entry of the table from which the router and the OpenAPI document are built.
type Operation struct {
	ID          string // in generated clients, such as createDataset
	Method      string
	Path        string // in chi's syntax
	Tag         string // group in the document: most often the collection
	Summary     string // a short sentence without a full stop
	Description string // further text; may be empty
	Gate        gate
	Permission  Permission // that the gate InAccount requires
	Query       []Parameter
	Headers     []Parameter // of the request, beyond the common ones
	Body        reflect.Type
	// Required are the fields that the body must have.
	Required []string
	// BodyOptional: no body is the empty object.
	BodyOptional bool
	// ReleasesResources: it ends work, and suspended accounts may use it.
	ReleasesResources bool
	Form              reflect.Type // the fields of a multipart/form-data body, instead of body
	Response          reflect.Type // of the JSON response
	AltResponse       reflect.Type // of another JSON response
	TextMedia         []string     // media types other than JSON
	Streamed          reflect.Type // data of server-sent events
	Media             string       // of a response that is neither JSON nor a stream
	ResponseHeaders   []Parameter  // beyond the common ones
	// Hidden operations are not part of the document: pages for browsers.
	Hidden bool
	Handle Handler
}

// A Gate says which principals may use an operation.
type gate int

const (
	InAccount  gate = iota // who has the permission in the account of the path, which must exist
	WithKey                // any valid key; the operation authorizes
	ByOperator             // the operator
	ToModels               // who may send requests to models; errors are an InferenceError
	Everyone               // no key is needed
)

// A Parameter is one of a query, a form or a header.
type Parameter struct {
	Name        string
	Kind        wire.Kind // Text, Bool, Int, or List for one that may be repeated
	Description string
}

// File is the type of a form's field that holds a file.
type File struct{}

// NoBody is the body of verbs without settings.
var NoBody = reflect.TypeFor[struct{}]()

// Parameters that many operations have.
var (
	ReadMaskParameter   = Parameter{"readMask", wire.List, "The fields to answer, as paths separated by commas; all of them when it is left out."}
	UpdateMaskParameter = Parameter{"updateMask", wire.List, "The fields to change, as paths separated by commas; those in the body when it is left out."}
	PageSizeParameter   = Parameter{"pageSize", wire.Int, "How many to answer at most: 50 when it is left out, never more than 200."}
	PageTokenParameter  = Parameter{"pageToken", wire.Text, "The nextPageToken of the page before, with all other parameters as they were."}
	ListParameters      = []Parameter{
		{"filter", wire.Text, "An AIP-160 filter over the fields of the answer, such as state = READY."},
		{"orderBy", wire.Text, "Fields to order by, separated by commas, each followed by desc or not."},
		PageSizeParameter, PageTokenParameter, ReadMaskParameter,
	}
)

func (c *Call) Answer() (any, error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	return idempotent{c}.once(c.Operation.Handle)
}

// admit authenticates and authorizes the request.
func (c *Call) admit() (err error) {
	if c.Operation.Gate == Everyone {
		return nil
	}
	if c.Principal, err = c.authenticate(); err != nil {
		return err
	}
	c.Conn.Identify(c.Principal.Account)
	c.KeyUsed()
	if err := c.withinRate(); err != nil {
		return err
	}
	switch c.Operation.Gate {
	case InAccount:
		if err := c.Principal.Authorize(c.Account, c.Operation.Permission); err != nil {
			return err
		}
		if _, ok := c.View().Accounts.Get(domain.Name("accounts/" + c.Account)); !ok && c.Account != domain.System {
			return NotFound("account", domain.Name("accounts/"+c.Account)) // only the operator gets here
		}
		if !c.Operation.changes() {
			return nil
		}
		if !c.Principal.IsOperator() {
			if err := c.RequireActive(c.Account); err != nil {
				return err
			}
		}
		return c.hasRoom()
	case ByOperator:
		return c.Principal.Require(Operate)
	case ToModels:
		if c.Account = c.Principal.Account; c.Direct != "" {
			return c.mayTakeRoute()
		}
		return c.Principal.Require(Infer)
	}
	return nil
}

// hasRoom refuses changes that store something on a disk that is nearly full. Reads, inference and
// deletions continue.
func (c *Call) hasRoom() error { return c.Space.Check(disk.Requests, 0) }

// changes reports whether the operation creates or changes something.
func (op *Operation) changes() bool {
	reads := op.Method == http.MethodGet || op.Permission == Read || op.Permission == ReadModels || op.Permission == FollowEvents
	return !reads && !op.ReleasesResources && op.Method != http.MethodDelete
}

// IsInference reports whether its errors are an InferenceError.
func (op *Operation) IsInference() bool { return op.Gate == ToModels }

// Declares reports whether the operation has a query parameter.
func (op *Operation) Declares(name string) bool {
	return slices.ContainsFunc(op.Query, func(p Parameter) bool { return p.Name == name })
}

// PageType returns the type of one page of a list, as ListResponse builds it.
func PageType(name string, item reflect.Type) reflect.Type {
	return reflect.StructOf([]reflect.StructField{
		wire.StructField("Items", name, reflect.SliceOf(item)),
		wire.StructField("NextPageToken", "nextPageToken,omitempty", reflect.TypeFor[string]()),
		wire.StructField("TotalSize", "totalSize", reflect.TypeFor[int]()),
	})
}

// Empty is the response of operations without a result.
var Empty = struct{}{}

// CollectionPath begins the paths of collections.
const CollectionPath = "/v1/accounts/{account}/"

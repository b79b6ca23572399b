package request

import (
	"cmp"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strings"

	"anneal/api/wire"
	"anneal/disk"
	"anneal/domain"
)

// VerbOf returns the custom verb of a path: the part after the colon in the last segment, or ""
// without a colon.
func VerbOf(of string) string {
	_, verb, _ := strings.Cut(path.Base(of), ":")
	return verb
}

// An Operation is one entry of the table from which the router and the OpenAPI document are built.
type Operation struct {
	ID     string // name of the method in generated clients, such as createDataset
	Method string
	Path   string // path in the syntax of the router chi
	// Slashes states that the variable at the end of Path may have slashes in its value, as they are
	// or as %2F.
	Slashes     bool
	Tag         string // group of operations in the document, usually the collection
	Summary     string // a short sentence without a full stop
	Description string // further text; may be empty
	Gate        gate
	Permission  Permission // permission that the gate InAccount requires
	Query       []Parameter
	Headers     []Parameter // request headers, without those that all operations have
	Body        reflect.Type
	// Required are the fields that the body must have.
	Required []string
	// BodyOptional states that a missing body means the empty object.
	BodyOptional bool
	// ReleasesResources states that the operation ends work or deletes a resource, so that
	// suspended accounts may use it.
	ReleasesResources bool
	Form              reflect.Type // fields of a multipart/form-data body, instead of Body
	Response          reflect.Type // type of the JSON response
	AltResponse       reflect.Type // type of a second form of the JSON response
	TextMedia         []string     // media types of text responses
	Streamed          reflect.Type // type of the data of server-sent events
	Media             string       // media type of a response that is neither JSON nor a stream
	ResponseHeaders   []Parameter  // response headers, without those that all operations have
	// Uncounted states that the operation does not count against the quota requests-per-minute, so
	// that a client without remaining requests can read how many it has left. It is for cheap reads:
	// they only read a bounded amount of memory.
	Uncounted bool
	// BareKey states that the header Authorization may have the API key without a scheme.
	BareKey bool
	// Hidden states that the operation, a page for browsers, is not part of the document.
	Hidden bool
	Handle Handler
}

// A gate states which principals may use an operation.
type gate int

const (
	InAccount    gate = iota // principals with the permission in the account of the path, which must exist
	InOwnAccount             // principals with the permission in their own account; errors are an InferenceError
	WithKey                  // principals with any valid key; the handler authorizes
	ByOperator               // the operator
	ToModels                 // principals that may send requests to models; errors are an InferenceError
	Everyone                 // no key is needed
)

// A Parameter is a field of a query, a form or a header.
type Parameter struct {
	Name        string
	Kind        wire.Kind // Text, Bool, Int, Map, or List for a parameter that may be repeated
	Description string
}

// File is the type of a form's field that contains a file.
type File struct{}

// NoBody is the body of verbs without settings.
var NoBody = reflect.TypeFor[struct{}]()

// Parameters that several operations share.
var (
	ReadMaskParameter = Parameter{"readMask", wire.List,
		"The fields to return, as paths separated by commas. The default is all fields."}
	UpdateMaskParameter = Parameter{"updateMask", wire.List,
		"The fields to change, as paths separated by commas. The default is the fields in the body."}
	PageSizeParameter = Parameter{"pageSize", wire.Int,
		"The maximum number of items to return. A value above 200 means 200. The default is 50."}
	PageTokenParameter = Parameter{"pageToken", wire.Text,
		"The nextPageToken of the previous page, with all other parameters unchanged."}
	ListParameters = []Parameter{
		{"filter", wire.Text, "An AIP-160 filter over the fields of the items, such as state = READY."},
		{"orderBy", wire.Text, "Fields to order by, separated by commas, each with an optional desc."},
		PageSizeParameter, PageTokenParameter, ReadMaskParameter,
	}
)

// Answer executes the request and returns the value of its response. The principal is admitted
// before any other validation of the request, in the world that the response must reflect. A caller
// without the right gets 401 or 403, whatever the body is and whether or not the resource exists.
func (c *Call) Answer() (any, error) {
	c.View() // sets the header anneal-position, also for responses to rejected requests
	markStale(c)
	if c.Operation.Gate == Everyone {
		return idempotent{c}.once(handle)
	}
	position, invalid := minPosition(c)
	admit := c.admit
	if position > c.View().Position {
		admit = func() error { return admitAt(c, position) }
	}
	err := admit()
	if domain.CodeOf(err) == domain.NotFound && catchUp(c) {
		err = admit() // another control plane has created the account
	}
	if err := cmp.Or(err, invalid); err != nil {
		return nil, err
	}
	return idempotent{c}.once(handle)
}

// AnswerInBackground is like Answer for a request of a batch, which is sent on behalf of the call's
// Principal. The request has no credentials: the batch was admitted when it was created.
func AnswerInBackground(c *Call) (any, error) {
	if err := c.withinRate(); err != nil {
		return nil, err
	}
	return c.Operation.Handle(c)
}

// admit returns an error unless, in the present world, the principal is authenticated, within the
// rate limit, and admitted by the gate of the operation. For a change of an account's resources, the
// account must also be active and the disk must have space.
func (c *Call) admit() (err error) {
	if c.Principal, err = c.authenticate(); err != nil {
		return err
	}
	c.Conn.Identify(c.Principal.Account)
	c.KeyUsed()
	if err := c.withinRate(); err != nil {
		return err
	}
	switch c.Operation.Gate {
	case InAccount, InOwnAccount:
		if c.Operation.Gate == InOwnAccount {
			c.Account = c.Principal.Account
		}
		if err := c.Principal.Authorize(c.Account, c.Operation.Permission); err != nil {
			return err
		}
		if _, ok := c.View().Accounts.Get(domain.Name("accounts/" + c.Account)); !ok && c.Account != domain.System {
			return NotFound("account", domain.Name("accounts/"+c.Account)) // only the operator gets this error
		}
		if !c.Operation.changes() {
			return nil
		}
		if !c.Principal.IsOperator() {
			if err := c.RequireActive(c.Account); err != nil {
				return err
			}
		}
		return c.hasSpace()
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

// hasSpace returns an error when the disk is nearly full. It is called for changes that store data;
// reads, inference and deletions continue.
func (c *Core) hasSpace() error { return c.Space.Check(disk.Requests, 0) }

// changes reports whether the operation creates or changes something.
func (op *Operation) changes() bool {
	reads := op.Method == http.MethodGet || op.Permission == Read || op.Permission == ReadModels ||
		op.Permission == FollowEvents
	return !reads && !op.ReleasesResources && op.Method != http.MethodDelete
}

// IsInference reports whether the operation sends requests to models.
func (op *Operation) IsInference() bool { return op.Gate == ToModels }

// HasInferenceErrors reports whether the errors of the operation are an InferenceError, the format
// of the OpenAI API. For a request without an operation, see api.errorFormats.
func (op *Operation) HasInferenceErrors() bool { return op.Gate == ToModels || op.Gate == InOwnAccount }

// Route returns the path as a pattern of the router. The wildcard of an operation with Slashes
// matches the value of the last variable: see Call.PathValue.
func (op *Operation) Route() string {
	if !op.Slashes {
		return op.Path
	}
	return op.Path[:strings.LastIndex(op.Path, "{")] + "*"
}

// Declares reports whether the operation has the query parameter name.
func (op *Operation) Declares(name string) bool {
	_, ok := op.parameter(name)
	return ok
}

func (op *Operation) parameter(name string) (p Parameter, ok bool) {
	at := slices.IndexFunc(op.Query, func(p Parameter) bool { return p.Name == name })
	if at < 0 {
		return Parameter{}, false
	}
	return op.Query[at], true
}

// PageType returns the type of one page of a list, as ListResponse returns it. name is the JSON
// name of the field with the items, and item is the type of an item.
func PageType(name string, item reflect.Type) reflect.Type {
	return reflect.StructOf([]reflect.StructField{
		wire.StructField("Items", name, reflect.SliceOf(item)),
		wire.StructField("NextPageToken", "nextPageToken,omitempty", reflect.TypeFor[string]()),
		wire.StructField("TotalSize", "totalSize", reflect.TypeFor[int]()),
	})
}

// Empty is the response of operations without a result.
var Empty = struct{}{}

// CollectionPath is the prefix of the paths of all collections.
const CollectionPath = "/v1/accounts/{account}/"

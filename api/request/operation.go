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

// VerbOf returns the custom verb of a path, such as cancel: the part after the colon in the last
// segment. It returns "" for a path without a colon.
func VerbOf(urlPath string) string {
	_, verb, _ := strings.Cut(path.Base(urlPath), ":")
	return verb
}

// An Operation is one entry of the table from which the router and the OpenAPI document are built.
type Operation struct {
	ID     string // name of the method in generated clients, such as createDataset
	Method string
	Path   string // path as a pattern of the router chi
	// Slashes states that the value of the variable at the end of Path may contain slashes, plain
	// or encoded as %2F.
	Slashes     bool
	Tag         string // group in the OpenAPI document, usually the collection
	Summary     string // a short sentence without a full stop
	Description string // further sentences; may be empty
	Gate        gate
	Permission  Permission // permission that the gates InAccount and InOwnAccount require
	Query       []Parameter
	Headers     []Parameter // request headers, except the headers that all operations accept
	Body        reflect.Type
	// Required are the fields that the body must have.
	Required []string
	// BodyOptional states that a missing body means the empty object.
	BodyOptional bool
	// ReleasesResources states that the operation ends work or deletes a resource, so that
	// suspended accounts may use it.
	ReleasesResources bool
	Form              reflect.Type // type of the fields of a multipart/form-data body; then Body is nil
	Response          reflect.Type // type of the JSON response
	AltResponse       reflect.Type // type of a second JSON format that requests can select; nil if there is none
	TextMedia         []string     // media types of text responses
	Streamed          reflect.Type // type of the data of each server-sent event
	Media             string       // media type of a response that is neither JSON nor a stream of events
	ResponseHeaders   []Parameter  // response headers, except the headers that all operations have
	// Uncounted states that requests do not count against the quota requests-per-minute, so that a
	// client without remaining requests can read how many it has. Only operations that read a
	// bounded amount of memory may be Uncounted.
	Uncounted bool
	// BareKey states that the header Authorization may contain an API key without the scheme
	// Bearer.
	BareKey bool
	// Hidden states that the OpenAPI document does not contain the operation, such as a page for
	// browsers.
	Hidden bool
	Handle Handler
}

// A gate states which callers may use an operation.
type gate int

const (
	// principals with the operation's Permission in the account of the path, which must exist
	InAccount gate = iota
	// principals with the operation's Permission in their own account; errors are an InferenceError
	InOwnAccount
	WithKey    // all principals with a valid key; the handler checks permissions
	ByOperator // the operator
	ToModels   // principals with the permission Infer; errors are an InferenceError
	Everyone   // all callers, also without a key
	// principals with the operation's Permission in the account of the trainer job to whose host name
	// the request was sent; the operation itself recognizes retried requests, without idempotency keys
	ToTraining
)

// A Parameter is a parameter of a query, a field of a form, or a header.
type Parameter struct {
	Name        string
	Kind        wire.Kind // Text, Bool, Int, Map, or List for a parameter that may be repeated
	Description string
}

// File is the type of a form field that contains a file.
type File struct{}

// NoBody is the Body of custom verbs without settings: an empty object.
var NoBody = reflect.TypeFor[struct{}]()

// Query parameters that several operations share.
var (
	ReadMaskParameter = Parameter{"readMask", wire.List,
		"The fields to return, as field paths separated by commas. The default is all fields."}
	UpdateMaskParameter = Parameter{"updateMask", wire.List,
		"The fields to change, as field paths separated by commas. The default is the fields that the body has."}
	PageSizeParameter = Parameter{"pageSize", wire.Int,
		"The maximum number of items to return. A value above 200 means 200. The default is 50."}
	PageTokenParameter = Parameter{"pageToken", wire.Text,
		"The nextPageToken of the previous page, with all other parameters unchanged."}
	ListParameters = []Parameter{
		{"filter", wire.Text, "An AIP-160 filter over the fields of the items, such as state = READY."},
		{"orderBy", wire.Text, "Fields to order the items by, separated by commas; desc after a field means descending " +
			"order."},
		PageSizeParameter, PageTokenParameter, ReadMaskParameter,
	}
)

// Answer executes the request and returns the value of its JSON response. It checks the caller's
// permissions before anything else in the request, so that a caller without permission gets 401 or
// 403 whatever the body is and whether or not the resource exists.
func (c *Call) Answer() (any, error) {
	c.View() // sets the header anneal-position, which error responses have too
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
		err = admit() // another control plane may have created the account in the meantime
	}
	if err := cmp.Or(err, invalid); err != nil {
		return nil, err
	}
	if c.Operation.Gate == ToTraining {
		return handle(c)
	}
	return idempotent{c}.once(handle)
}

// AnswerInBackground is like Answer for a request of a batch, which is sent on behalf of the call's
// Principal. It checks no credentials or permissions, because they were checked when the batch was
// created.
func AnswerInBackground(c *Call) (any, error) {
	if err := c.withinRate(); err != nil {
		return nil, err
	}
	return c.Operation.Handle(c)
}

// admit returns an error if the API key is invalid, the rate limit is exceeded, or the operation's
// gate does not allow the caller. For a change of an account's resources, it also returns an error
// if the account is suspended or the disk is nearly full.
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
	case InAccount, InOwnAccount, ToTraining:
		switch c.Operation.Gate {
		case InOwnAccount:
			c.Account = c.Principal.Account
		case ToTraining:
			c.Account = c.Direct.Account()
		}
		if err := c.Principal.Authorize(c.Account, c.Operation.Permission); err != nil {
			return err
		}
		if _, ok := c.View().Accounts.Get(domain.Name("accounts/" + c.Account)); !ok && c.Account != domain.System {
			// only the operator gets here: other principals belong to an existing account
			return NotFound("account", domain.Name("accounts/"+c.Account))
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

// hasSpace returns an error if the disk is nearly full. Changes that store data are then refused;
// reads, inference and deletions continue.
func (c *Core) hasSpace() error { return c.Space.Check(disk.Requests, 0) }

// changes reports whether the operation may create resources or generate usage, so that suspended
// accounts may not use it. Reads, deletions and operations with ReleasesResources do not.
func (op *Operation) changes() bool {
	reads := op.Method == http.MethodGet || op.Permission == Read || op.Permission == ReadModels ||
		op.Permission == FollowEvents
	return !reads && !op.ReleasesResources && op.Method != http.MethodDelete
}

// IsInference reports whether the operation sends requests to models.
func (op *Operation) IsInference() bool { return op.Gate == ToModels }

// HasInferenceErrors reports whether the operation's errors have the format of the OpenAI API,
// InferenceError, instead of ManagementError. For requests that match no operation, see
// api.errorFormats.
func (op *Operation) HasInferenceErrors() bool { return op.Gate == ToModels || op.Gate == InOwnAccount }

// Route returns the path as a pattern of the router chi. For an operation with Slashes, the pattern
// ends with a wildcard, from which Call.PathValue reads the last variable.
func (op *Operation) Route() string {
	if !op.Slashes {
		return op.Path
	}
	return op.Path[:strings.LastIndex(op.Path, "{")] + "*"
}

// Declares reports whether the operation has a query parameter with the name.
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

// PageType returns the type of one page of a list, which ListResponse returns. name is the JSON
// name of the array of items, and item is the type of an item.
func PageType(name string, item reflect.Type) reflect.Type {
	return reflect.StructOf([]reflect.StructField{
		wire.StructField("Items", name, reflect.SliceOf(item)),
		wire.StructField("NextPageToken", "nextPageToken,omitempty", reflect.TypeFor[string]()),
		wire.StructField("TotalSize", "totalSize", reflect.TypeFor[int]()),
	})
}

// Empty is the JSON response {} of operations without a result.
var Empty = struct{}{}

// CollectionPath is the prefix of the paths of an account's collections.
const CollectionPath = "/v1/accounts/{account}/"

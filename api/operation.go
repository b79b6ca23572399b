package api

import (
	"net/http"
	"reflect"
	"slices"

	"github.com/go-chi/chi/v5"

	"anneal/api/wire"
	"anneal/disk"
	"anneal/domain"
)

// An operation is one line of the table from which both the router and the
// description of the interface are made.
type operation struct {
	id      string // as generated clients call it: createDataset
	method  string
	path    string // as chi writes it
	tag     string // the group in which it is described: most often its collection
	summary string // one short sentence without a full stop
	about   string // what else its user should know; may be empty
	gate    gate
	may     permission // what the gate inAccount asks for
	query   []parameter
	headers []parameter // of the request, beyond those of every request
	body    reflect.Type
	// requires are fields that the body must have.
	requires []string
	// emptyBody: no body at all is the empty object.
	emptyBody bool
	// givesBack: it ends work, so a suspended account may do it as well.
	givesBack bool
	form      reflect.Type // the fields of a multipart/form-data body, instead of body
	answer    reflect.Type // of the JSON that it answers
	orElse    reflect.Type // of other JSON that it may answer as well
	texts     []string     // media types that it may answer instead of JSON
	streams   reflect.Type // of the data of server-sent events, when it can answer such
	media     string       // what it answers when that is neither JSON nor a stream
	replies   []parameter  // headers of the answer, beyond those of every answer
	// unlisted operations are routed and not described: pages for people.
	unlisted bool
	handle   handler
}

// A gate says who is let through to an operation.
type gate int

const (
	inAccount  gate = iota // whose role may do it in the account of the path, which must exist
	withKey                // whoever holds a valid key; the operation decides itself
	byOperator             // the operator
	toModels               // whose role may ask models; errors have the inference shape
	everybody              // no key is needed
)

// A parameter is one of a query, a form or a header.
type parameter struct {
	name  string
	sort  wire.Kind // textValue, boolValue, intValue, or listValue for one that may be repeated
	about string
}

// file is the type of a form's field that holds a file.
type file struct{}

// noSettings is the body of verbs that carry none.
var noSettings = reflect.TypeFor[struct{}]()

// Parameters that many operations have.
var (
	readMaskQuery = parameter{"readMask", wire.List, "The fields to answer, as paths separated by commas; all of them when it is left out."}
	updateMask    = parameter{"updateMask", wire.List, "The fields to change, as paths separated by commas; those in the body when it is left out."}
	pageSizeQuery = parameter{"pageSize", wire.Int, "How many to answer at most: 50 when it is left out, never more than 200."}
	pageToken     = parameter{"pageToken", wire.Text, "The nextPageToken of the page before, with all other parameters as they were."}
	listQuery     = []parameter{
		{"filter", wire.Text, "An AIP-160 filter over the fields of the answer, such as state = READY."},
		{"orderBy", wire.Text, "Fields to order by, separated by commas, each followed by desc or not."},
		pageSizeQuery, pageToken, readMaskQuery,
	}
)

// operations is the whole table.
func operations() []operation {
	return slices.Concat(
		systemOperations(), docsOperations(),
		accountOperations(),
		apiKeys.operations(),
		secrets.operations(),
		models.operations(), modelOperations(),
		datasets.operations(), datasetOperations(),
		evaluators.operations(), evaluatorOperations(),
		supervisedJobs.operations(), jobOperations(supervisedJobs), []operation{estimateOperation()},
		dpoJobs.operations(), jobOperations(dpoJobs),
		reinforcementJobs.operations(), jobOperations(reinforcementJobs),
		trainerJobs.operations(), jobOperations(trainerJobs), []operation{trainStepOperation()},
		deploymentShapes.operations(), shapeVersionOperations(),
		deployments.operations(), deploymentOperations(),
		deployedModels.operations(),
		nodes.operations(), nodeOperations(),
		quotaOperations(),
		eventOperations(),
		inferenceOperations(),
		transcriptionOperations(),
	)
}

// offer routes an operation. Who may call it is decided before anything else
// of the request is looked at.
func (s *Server) offer(r chi.Router, op *operation) {
	r.Method(op.method, op.path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if verbOf(r.URL.Path) != verbOf(op.path) { // the router takes resource:verb for a resource of that name
			s.noSuchMethod(w, r)
			return
		}
		c := &call{Server: s, op: op, w: w, r: r, ctx: r.Context(), id: requestID(r), now: s.Now().UTC(), account: chi.URLParam(r, "account"), direct: directOf(r)}
		result, err := c.answer()
		kept, isKept := result.(keptAnswer)
		switch {
		case err != nil:
			s.note(r, err)
			refuse(w, errorOf(err), c.id, op.inference())
		case isKept:
			kept.send(w)
		case result != nil:
			answerWith(w, result)
		}
	}))
}

func (c *call) answer() (any, error) {
	if err := c.admit(); err != nil {
		return nil, err
	}
	return c.once(c.op.handle)
}

// admit lets the caller through the operation's gate, or says why not.
func (c *call) admit() (err error) {
	if c.op.gate == everybody {
		return nil
	}
	if c.caller, err = c.whoAsks(); err != nil {
		return err
	}
	exchangeOf(c.r).account = c.caller.account
	know(c.r.Context(), c.caller.account)
	c.keyUsed()
	if err := c.withinRate(); err != nil {
		return err
	}
	switch c.op.gate {
	case inAccount:
		if err := c.caller.authorise(c.account, c.op.may); err != nil {
			return err
		}
		if _, ok := c.snapshot().Accounts.Get(domain.Name("accounts/" + c.account)); !ok && c.account != domain.System {
			return notFound("account", domain.Name("accounts/"+c.account)) // the operator alone comes here
		}
		if !c.op.changes() {
			return nil
		}
		if !c.caller.operator() {
			if err := c.mayWork(c.account); err != nil {
				return err
			}
		}
		return c.hasRoom()
	case byOperator:
		return c.caller.may(toOperate)
	case toModels:
		if c.account = c.caller.account; c.direct != "" {
			return c.mayTakeRoute()
		}
		return c.caller.may(toInfer)
	}
	return nil
}

// hasRoom refuses what takes room on a disk that is nearly full. What reads, asks
// models, or gives something back goes on: it takes from what others leave free.
func (c *call) hasRoom() error { return c.Space.Check(disk.Requests, 0) }

// changes tells whether the operation makes or changes something, rather than
// reading it or taking it away.
func (op *operation) changes() bool {
	reads := op.method == http.MethodGet || op.may == toRead || op.may == toReadModels || op.may == toFollow
	return !reads && !op.givesBack && op.method != http.MethodDelete
}

// inference tells whether its errors have the inference shape.
func (op *operation) inference() bool { return op.gate == toModels }

// declares tells whether the operation has a query parameter.
func (op *operation) declares(name string) bool {
	return slices.ContainsFunc(op.query, func(p parameter) bool { return p.name == name })
}

// pageOf is the type of one page of a list: what listAnswer answers.
func pageOf(name string, item reflect.Type) reflect.Type {
	return reflect.StructOf([]reflect.StructField{
		wire.StructField("Items", name, reflect.SliceOf(item)),
		wire.StructField("NextPageToken", "nextPageToken,omitempty", reflect.TypeFor[string]()),
		wire.StructField("TotalSize", "totalSize", reflect.TypeFor[int]()),
	})
}

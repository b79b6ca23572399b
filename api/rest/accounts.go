package rest

import (
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Account is the wire type of an account.
type Account struct {
	Name string `json:"name" api:"output"`
	domain.AccountSpec
	CreateTime   *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime   *time.Time    `json:"updateTime,omitempty" api:"output"`
	State        string        `json:"state" api:"output"`
	Status       domain.Status `json:"status" api:"output"`
	SuspendState string        `json:"suspendState" api:"output"`
	// Nodes states which nodes the account's jobs and replicas may use.
	Nodes *domain.NodePolicy `json:"nodes,omitempty" api:"output"`
	// QueueWeight is the weight of the account in the queue of jobs; 0 means 1.
	QueueWeight int `json:"queueWeight,omitempty" api:"output"`
	// JobAccelerators is the operator's table of how many accelerators the account's jobs get.
	JobAccelerators domain.JobAccelerators `json:"jobAccelerators,omitempty" api:"output"`
}

// accounts declares the operations of the kind account. API keys of an account can read it; only
// the operator creates and changes accounts.
var accounts = &resource[domain.Account, Account]{
	kind: domain.Accounts, noun: "account", wrapper: "account", idParam: "accountId", writes: request.Operate,
	fields: storedFieldsOf[domain.Account, Account]("name", "email", "displayName", "createTime", "updateTime", "state",
		"status", "suspendState", "queueWeight"),
	dependent: map[string]func(*projections.Row[domain.Account]) bool{},
	render: func(_ *projections.View, row *projections.Row[domain.Account], out *Account) {
		*out = Account{Name: string(row.Name), AccountSpec: row.State.AccountSpec,
			CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State: row.State.State, Status: row.State.Status, SuspendState: row.State.SuspendState,
			QueueWeight: row.State.QueueWeight, JobAccelerators: row.State.JobAccelerators}
		if policy := row.State.Nodes; policy.String() != "" {
			out.Nodes = &policy
		}
		if out.AccountType == "" {
			out.AccountType = "ACCOUNT_TYPE_UNSPECIFIED"
		}
	},
	update: func(_ *call, q *update[domain.Account, Account]) (plan[domain.Account, Account], error) {
		q.merged.AccountType = wire.Specified(q.merged.AccountType)
		return plan[domain.Account, Account]{command: domain.UpdateAccount{AccountSpec: q.merged.AccountSpec}}, nil
	},
}

var _ = register(accountOperations)

func accountOperations(s *Service) []request.Operation {
	const one = "/v1/accounts/{account}"
	all := []request.Operation{
		{ID: "createAccount", Method: "POST", Path: "/v1/accounts",
			Summary: "Create an account and its first API key, with the role admin", Gate: request.ByOperator,
			Body: accounts.envelope(), BodyOptional: true, Response: reflect.TypeFor[CreatedAccount](),
			Handle: s.handle(createAccount)},
		{ID: "listAccounts", Method: "GET", Path: "/v1/accounts", Summary: "List accounts", Gate: request.ByOperator,
			Query: request.ListParameters, Response: request.PageType("accounts", reflect.TypeFor[Account]()),
			Handle: s.handle(listAccounts)},
		{ID: "getAccount", Method: "GET", Path: one, Summary: "Read an account", Permission: request.Read,
			Query: []request.Parameter{request.ReadMaskParameter}, Response: reflect.TypeFor[Account](),
			Handle: s.handle(withAccountID(accounts.get))},
		{ID: "updateAccount", Method: "PATCH", Path: one, Summary: "Change an account", Gate: request.ByOperator,
			Query: []request.Parameter{request.UpdateMaskParameter}, Body: reflect.TypeFor[Account](),
			Response: reflect.TypeFor[Account](), Handle: s.handle(withAccountID(accounts.patch))},
		{ID: "suspendAccount", Method: "POST", Path: one + ":suspend", Summary: "Suspend an account",
			Gate: request.ByOperator,
			Description: "A suspended account can only read, delete, cancel and scale down. Other changes and inference are " +
				"rejected.",
			Body: reflect.TypeFor[suspension](), BodyOptional: true, Response: reflect.TypeFor[Account](),
			Handle: s.handle(suspendAccount)},
		{ID: "restoreAccount", Method: "POST", Path: one + ":restore", Summary: "End the suspension of an account",
			Gate: request.ByOperator,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Account](), Handle: s.handle(restoreAccount)},
		{ID: "getDigest", Method: "GET", Path: "/v1/system/digest", Summary: "Get a digest of the state of all resources",
			Gate:        request.WithKey,
			Description: "Two servers with equal digests at the same log position have the same state.",
			Response:    reflect.TypeFor[projections.Digest](), Handle: s.handle(digest)},
	}
	return withTag("accounts", all)
}

// withAccountID adapts a generic handler to accounts, in whose paths {account}, and not {id}, is
// the ID of the resource.
func withAccountID(h handler) handler {
	return func(c *call) (any, error) {
		c.SetPathValue("id", c.Account)
		return h(c)
	}
}

func listAccounts(c *call) (any, error) {
	c.Account = domain.System // lists of accounts belong to the account system
	return accounts.list(c)
}

// A CreatedAccount is a new account with its first API key. No other response contains the key.
type CreatedAccount struct {
	Account *Account `json:"account"`
	APIKey  *APIKey  `json:"apiKey"`
	Key     string   `json:"key"`
}

// firstKey is the ID of the API key, with the role admin, that is created with an account.
const firstKey = "admin"

// createAccount records an account, and then its first API key. The event of the account contains
// the key, so that a scheduler can create the key if the server stops between the two events. For
// an account that an earlier release created without a key, createAccount records only the key.
func createAccount(c *call) (any, error) {
	p := c.Params()
	given, name, _, err := accounts.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	name = domain.NewName(name.ID(), "accounts", name.ID())
	p.Violations.Require(name.ID() != domain.System, "accountId", "the ID %q is reserved for the operator's account: "+
		"choose another ID",
		domain.System)
	keyName := domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)
	key := c.Mint(keyName)
	record := domain.APIKeyCreated{APIKeySpec: domain.APIKeySpec{DisplayName: "first key", Role: domain.RoleAdmin},
		Hash: key.Hash, Prefix: key.Prefix, CreatedBy: string(c.Principal.Key)}
	given.AccountType = wire.Specified(given.AccountType)
	account := domain.Intend(domain.Accounts, name, domain.Command[domain.Account](
		domain.CreateAccount{AccountSpec: given.AccountSpec, FirstKey: &domain.FirstKey{ID: firstKey, Key: record}}))
	if err := allViolations(c, account, p, accounts.prefixed); err != nil {
		return nil, err
	}
	var created *Account
	if row, found := accountWithoutKey(c.View(), name); found {
		created = accounts.rendered(c, row)
	} else if result, err := c.Do(account); err != nil {
		return nil, accounts.prefixed(err)
	} else if created, err = accounts.reply(c, result); err != nil {
		return nil, err
	}
	result, err := c.Do(domain.Intend(domain.APIKeys, keyName, domain.Command[domain.APIKey](domain.CreateAPIKey(record))))
	if err != nil {
		return nil, accounts.prefixed(err)
	}
	warnOutputs(c, p, accounts.wrapper, nil, created)
	rendered, err := apiKeys.reply(c, result)
	return CreatedAccount{created, rendered, key.Text}, err
}

// accountWithoutKey returns the row of an account that never had an API key, because a server of an
// earlier release stopped between the events of the account and the key. It returns false for other
// accounts.
func accountWithoutKey(v *projections.View, name domain.Name) (*projections.Row[domain.Account], bool) {
	row, exists := v.Accounts.Get(name)
	return row, exists && row.State.FirstKey == nil && v.APIKeys.Count(name.ID()) == 0 &&
		v.APIKeys.Version(domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)) == 0
}

// A suspension is the body of suspendAccount.
type suspension struct {
	SuspendState string `json:"suspendState"`
	Reason       string `json:"reason"`
}

func suspendAccount(c *call) (any, error) {
	p, body := c.Params(), suspension{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	if body.Reason == "" {
		body.Reason = "suspended by the operator: " + body.SuspendState
	}
	return changeAccount(c, p, domain.SuspendAccount{SuspendState: body.SuspendState, Reason: body.Reason})
}

func restoreAccount(c *call) (any, error) {
	p := c.Params()
	if err := p.ReadVerb(&struct{}{}); err != nil {
		return nil, err
	}
	return changeAccount(c, p, domain.RestoreAccount{})
}

func changeAccount(c *call, p *request.Params, command domain.Command[domain.Account]) (any, error) {
	name := domain.Name("accounts/" + c.Account)
	if _, ok := c.View().Accounts.Get(name); !ok {
		return nil, request.NotFound("account", name)
	}
	intent := domain.Intend(domain.Accounts, name, command)
	if err := allViolations(c, intent, p, unprefixed); err != nil {
		return nil, err
	}
	result, err := c.Do(intent)
	if err != nil {
		return nil, err
	}
	return accounts.reply(c, result)
}

// digest responds with the digest of the present world. Equal digests at the same position show
// that two servers, or one server before and after a rebuild, have the same state.
func digest(c *call) (any, error) {
	if c.Principal.Account != publicAccount || c.Principal.Role != domain.RoleAdmin {
		if err := c.Principal.Require(request.Operate); err != nil {
			return nil, err
		}
	}
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	return c.View().Digest()
}

package api

import (
	"iter"
	"reflect"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// Account is an account on the wire.
type Account struct {
	Name string `json:"name" api:"output"`
	domain.AccountSpec
	CreateTime   *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime   *time.Time    `json:"updateTime,omitempty" api:"output"`
	State        string        `json:"state" api:"output"`
	Status       domain.Status `json:"status" api:"output"`
	SuspendState string        `json:"suspendState" api:"output"`
}

// accounts are read by their own keys, and made and changed by the operator.
var accounts = &resource[domain.Account, Account]{
	kind: domain.Accounts, noun: "account", wrapper: "account", idParam: "accountId", writes: request.Operate,
	fields: storedFieldsOf[domain.Account, Account]("name", "email", "displayName", "createTime", "updateTime", "state", "status", "suspendState"),
	render: func(_ *projections.View, row *projections.Row[domain.Account], out *Account) {
		*out = Account{Name: string(row.Name), AccountSpec: row.State.AccountSpec,
			CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State: row.State.State, Status: row.State.Status, SuspendState: row.State.SuspendState}
		if out.AccountType == "" {
			out.AccountType = "ACCOUNT_TYPE_UNSPECIFIED"
		}
	},
	create: func(_ *call, _ domain.Name, given *Account) domain.Command[domain.Account] {
		given.AccountType = wire.Specified(given.AccountType)
		return domain.CreateAccount{AccountSpec: given.AccountSpec}
	},
	update: func(_ domain.Account, merged, _ *Account, _ wire.Mask) (domain.Command[domain.Account], error) {
		merged.AccountType = wire.Specified(merged.AccountType)
		return domain.UpdateAccount{AccountSpec: merged.AccountSpec}, nil
	},
}

func accountOperations(s *Server) []request.Operation {
	const one = "/v1/accounts/{account}"
	all := []request.Operation{
		{ID: "createAccount", Method: "POST", Path: "/v1/accounts", Summary: "Create an account and the first key of its admin", Gate: request.ByOperator,
			Body: accounts.envelope(), BodyOptional: true, Response: reflect.TypeFor[createdAccount](), Handle: s.handle(createAccount)},
		{ID: "listAccounts", Method: "GET", Path: "/v1/accounts", Summary: "List accounts", Gate: request.ByOperator,
			Query: request.ListParameters, Response: request.PageType("accounts", reflect.TypeFor[Account]()), Handle: s.handle(listAccounts)},
		{ID: "getAccount", Method: "GET", Path: one, Summary: "Read an account", Permission: request.Read,
			Query: []request.Parameter{request.ReadMaskParameter}, Response: reflect.TypeFor[Account](), Handle: s.handle(withAccountID(accounts.get))},
		{ID: "updateAccount", Method: "PATCH", Path: one, Summary: "Change an account", Gate: request.ByOperator,
			Query: []request.Parameter{request.UpdateMaskParameter}, Body: reflect.TypeFor[Account](), Response: reflect.TypeFor[Account](), Handle: s.handle(withAccountID(accounts.patch))},
		{ID: "suspendAccount", Method: "POST", Path: one + ":suspend", Summary: "Suspend an account", Gate: request.ByOperator,
			Description: "It may then read, delete, cancel and scale down, but change nothing else and ask no models.",
			Body:        reflect.TypeFor[suspension](), BodyOptional: true, Response: reflect.TypeFor[Account](), Handle: s.handle(suspendAccount)},
		{ID: "restoreAccount", Method: "POST", Path: one + ":restore", Summary: "End the suspension of an account", Gate: request.ByOperator,
			Body: request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Account](), Handle: s.handle(restoreAccount)},
		{ID: "getDigest", Method: "GET", Path: "/v1/system/digest", Summary: "Read the fingerprint of the world", Gate: request.WithKey,
			Description: "Two installations, or one before and after a rebuild, can be compared by it.", Response: reflect.TypeFor[projections.Digest](), Handle: s.handle(digest)},
	}
	for i := range all {
		all[i].Tag = "accounts"
	}
	return all
}

// withAccountID lets the generic operations find an account: its ID stands
// where other resources have their account.
func withAccountID(h handler) handler {
	return func(c *call) (any, error) {
		chi.RouteContext(c.Request.Context()).URLParams.Add("id", c.Account)
		return h(c)
	}
}

func listAccounts(c *call) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[Account]())
	var all iter.Seq[*projections.Row[domain.Account]] = c.View().Accounts.All()
	page, err := query.List(all, func(row *projections.Row[domain.Account], out *Account) { accounts.render(nil, row, out) }, accounts.fields, q)
	if err := request.JoinErrors(p.Err(), err); err != nil {
		return nil, err
	}
	return request.ListResponse("accounts", page.Items, page.NextPageToken, page.TotalSize, m)
}

// A createdAccount is a new account with the first key of its admin, which no
// other answer shows.
type createdAccount struct {
	Account *Account `json:"account"`
	APIKey  *APIKey  `json:"apiKey"`
	Key     string   `json:"key"`
}

// firstKey is the ID of the key that an account is created with.
const firstKey = "admin"

// createAccount makes an account, whose event holds its first key, and then that
// key. Should the server stop in between, a scheduler creates the key. An
// account of an earlier version that was cut off from its key is completed.
func createAccount(c *call) (any, error) {
	p := c.Params()
	given, name, _, err := accounts.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	name = domain.NewName(name.ID(), "accounts", name.ID())
	p.Violations.Require(name.ID() != domain.System, "accountId", "%q is the operator's own account: choose another", domain.System)
	keyName := domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)
	key := c.Mint(keyName)
	record := domain.APIKeyCreated{APIKeySpec: domain.APIKeySpec{DisplayName: "first key", Role: domain.RoleAdmin},
		Hash: key.Hash, Prefix: key.Prefix, CreatedBy: string(c.Principal.Key)}
	given.AccountType = wire.Specified(given.AccountType)
	account := domain.Intend(domain.Accounts, name, domain.Command[domain.Account](
		domain.CreateAccount{AccountSpec: given.AccountSpec, FirstKey: &domain.FirstKey{ID: firstKey, Key: record}}))
	if err := refused(c, account, p, accounts.prefixed); err != nil {
		return nil, err
	}
	var made *Account
	if row, cut := keyless(c.View(), name); cut {
		made = accounts.wire(c, row)
	} else if result, err := c.Do(account); err != nil {
		return nil, accounts.prefixed(err)
	} else if made, err = accounts.reply(c, result); err != nil {
		return nil, err
	}
	result, err := c.Do(domain.Intend(domain.APIKeys, keyName, domain.Command[domain.APIKey](domain.CreateAPIKey(record))))
	if err != nil {
		return nil, accounts.prefixed(err)
	}
	shown, err := apiKeys.reply(c, result)
	return createdAccount{made, shown, key.Text}, err
}

// keyless is an account that never had a key: a batch of an earlier version was
// cut off behind its first event. It answers false for any other.
func keyless(v *projections.View, name domain.Name) (*projections.Row[domain.Account], bool) {
	row, there := v.Accounts.Get(name)
	return row, there && row.State.FirstKey == nil && v.APIKeys.Count(name.ID()) == 0 &&
		v.APIKeys.Version(domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)) == 0
}

// A suspension is why an account is to stop.
type suspension struct {
	SuspendState string `json:"suspendState"`
	Reason       string `json:"reason"`
}

func suspendAccount(c *call) (any, error) {
	var asked suspension
	if err := readVerb(c, &asked); err != nil {
		return nil, err
	}
	if asked.Reason == "" {
		asked.Reason = "suspended by the operator: " + asked.SuspendState
	}
	if len(asked.Reason) > domain.MaxDescription {
		var v domain.Violations
		v.Add("reason", "must have at most %d bytes", domain.MaxDescription)
		return nil, v.Err()
	}
	return changeAccount(c, domain.SuspendAccount{SuspendState: asked.SuspendState, Reason: asked.Reason})
}

func restoreAccount(c *call) (any, error) {
	if err := readVerb(c, &struct{}{}); err != nil {
		return nil, err
	}
	return changeAccount(c, domain.RestoreAccount{})
}

func changeAccount(c *call, command domain.Command[domain.Account]) (any, error) {
	name := domain.Name("accounts/" + c.Account)
	if _, ok := c.View().Accounts.Get(name); !ok {
		return nil, request.NotFound("account", name)
	}
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	result, err := c.Do(domain.Intend(domain.Accounts, name, command))
	if err != nil {
		return nil, err
	}
	return accounts.reply(c, result)
}

// digest is the fingerprint of the world as it is now: two installations, or
// one before and after a rebuild, can be compared by it.
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

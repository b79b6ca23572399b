package api

import (
	"iter"
	"reflect"
	"time"

	"github.com/go-chi/chi/v5"

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
	kind: domain.Accounts, noun: "account", wrapper: "account", idParam: "accountId", writes: toOperate,
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

func accountOperations() []operation {
	const one = "/v1/accounts/{account}"
	all := []operation{
		{id: "createAccount", method: "POST", path: "/v1/accounts", summary: "Create an account and the first key of its admin", gate: byOperator,
			body: accounts.envelope(), emptyBody: true, answer: reflect.TypeFor[createdAccount](), handle: createAccount},
		{id: "listAccounts", method: "GET", path: "/v1/accounts", summary: "List accounts", gate: byOperator,
			query: listQuery, answer: pageOf("accounts", reflect.TypeFor[Account]()), handle: listAccounts},
		{id: "getAccount", method: "GET", path: one, summary: "Read an account", may: toRead,
			query: []parameter{readMaskQuery}, answer: reflect.TypeFor[Account](), handle: withAccountID(accounts.get)},
		{id: "updateAccount", method: "PATCH", path: one, summary: "Change an account", gate: byOperator,
			query: []parameter{updateMask}, body: reflect.TypeFor[Account](), answer: reflect.TypeFor[Account](), handle: withAccountID(accounts.patch)},
		{id: "suspendAccount", method: "POST", path: one + ":suspend", summary: "Suspend an account", gate: byOperator,
			about: "It may then read, delete, cancel and scale down, but change nothing else and ask no models.",
			body:  reflect.TypeFor[suspension](), emptyBody: true, answer: reflect.TypeFor[Account](), handle: suspendAccount},
		{id: "restoreAccount", method: "POST", path: one + ":restore", summary: "End the suspension of an account", gate: byOperator,
			body: noSettings, emptyBody: true, answer: reflect.TypeFor[Account](), handle: restoreAccount},
		{id: "getDigest", method: "GET", path: "/v1/system/digest", summary: "Read the fingerprint of the world", gate: withKey,
			about: "Two installations, or one before and after a rebuild, can be compared by it.", answer: reflect.TypeFor[projections.Digest](), handle: digest},
	}
	for i := range all {
		all[i].tag = "accounts"
	}
	return all
}

// withAccountID lets the generic operations find an account: its ID stands
// where other resources have their account.
func withAccountID(h handler) handler {
	return func(c *call) (any, error) {
		chi.RouteContext(c.r.Context()).URLParams.Add("id", c.account)
		return h(c)
	}
}

func listAccounts(c *call) (any, error) {
	p := c.params()
	q, m := readQuery(c, p, reflect.TypeFor[Account]())
	var all iter.Seq[*projections.Row[domain.Account]] = c.snapshot().Accounts.All()
	page, err := query.List(all, func(row *projections.Row[domain.Account], out *Account) { accounts.render(nil, row, out) }, accounts.fields, q)
	if err := both(p.err(), err); err != nil {
		return nil, err
	}
	return listAnswer("accounts", page.Items, page.NextPageToken, page.TotalSize, m)
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
	p := c.params()
	given, name, _, err := accounts.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	name = domain.NewName(name.ID(), "accounts", name.ID())
	p.violations.Require(name.ID() != domain.System, "accountId", "%q is the operator's own account: choose another", domain.System)
	keyName := domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)
	key := c.mint(keyName)
	record := domain.APIKeyCreated{APIKeySpec: domain.APIKeySpec{DisplayName: "first key", Role: domain.RoleAdmin},
		Hash: key.Hash, Prefix: key.Prefix, CreatedBy: string(c.caller.key)}
	given.AccountType = wire.Specified(given.AccountType)
	account := domain.Intend(domain.Accounts, name, domain.Command[domain.Account](
		domain.CreateAccount{AccountSpec: given.AccountSpec, FirstKey: &domain.FirstKey{ID: firstKey, Key: record}}))
	if err := refused(c, account, p, accounts.prefixed); err != nil {
		return nil, err
	}
	var made *Account
	if row, cut := keyless(c.snapshot(), name); cut {
		made = accounts.wire(c, row)
	} else if result, err := c.do(account); err != nil {
		return nil, accounts.prefixed(err)
	} else if made, err = accounts.reply(c, result); err != nil {
		return nil, err
	}
	result, err := c.do(domain.Intend(domain.APIKeys, keyName, domain.Command[domain.APIKey](domain.CreateAPIKey(record))))
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
	name := domain.Name("accounts/" + c.account)
	if _, ok := c.snapshot().Accounts.Get(name); !ok {
		return nil, notFound("account", name)
	}
	if err := c.params().err(); err != nil {
		return nil, err
	}
	result, err := c.do(domain.Intend(domain.Accounts, name, command))
	if err != nil {
		return nil, err
	}
	return accounts.reply(c, result)
}

// digest is the fingerprint of the world as it is now: two installations, or
// one before and after a rebuild, can be compared by it.
func digest(c *call) (any, error) {
	if c.caller.account != publicAccount || c.caller.role != domain.RoleAdmin {
		if err := c.caller.may(toOperate); err != nil {
			return nil, err
		}
	}
	if err := c.params().err(); err != nil {
		return nil, err
	}
	return c.snapshot().Digest()
}

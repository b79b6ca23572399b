package api

import (
	"iter"
	"reflect"
	"strings"
	"time"

	"github.com/go-chi/chi/v5"

	"anneal/domain"
	"anneal/projections"
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
	fields: projections.FieldsOf[Account](),
	render: func(_ *projections.View, row *projections.Row[domain.Account], out *Account) {
		*out = Account{Name: string(row.Name), AccountSpec: row.State.AccountSpec,
			CreateTime: stamp(row.CreateTime), UpdateTime: stamp(row.UpdateTime),
			State: row.State.State, Status: row.State.Status, SuspendState: row.State.SuspendState}
		if out.AccountType == "" {
			out.AccountType = "ACCOUNT_TYPE_UNSPECIFIED"
		}
	},
	create: func(_ *call, _ domain.Name, given *Account) domain.Command[domain.Account] {
		given.AccountType = specified(given.AccountType)
		return domain.CreateAccount{AccountSpec: given.AccountSpec}
	},
	update: func(_ domain.Account, merged, _ *Account, _ mask) (domain.Command[domain.Account], error) {
		merged.AccountType = specified(merged.AccountType)
		return domain.UpdateAccount{AccountSpec: merged.AccountSpec}, nil
	},
}

func (s *Server) routeAccounts(r chi.Router) {
	operate := func(h handler) handler {
		return func(c *call) (any, error) {
			if err := c.caller.may(toOperate); err != nil {
				return nil, err
			}
			return h(c)
		}
	}
	r.Post("/v1/accounts", s.answer(false, operate(createAccount)))
	r.Get("/v1/accounts", s.answer(false, operate(listAccounts)))
	r.Get("/v1/accounts/{account}", s.manage(toRead, getAccount))
	r.Patch("/v1/accounts/{account}", s.answer(false, operate(withAccountID(accounts.patch))))
	r.Post("/v1/accounts/{account}:suspend", s.answer(false, operate(suspendAccount)))
	r.Post("/v1/accounts/{account}:restore", s.answer(false, operate(restoreAccount)))
	r.Get("/v1/system/digest", s.answer(false, digest))
}

// withAccountID lets the generic operations find an account: its ID stands
// where other resources have their account.
func withAccountID(h handler) handler {
	return func(c *call) (any, error) {
		chi.RouteContext(c.r.Context()).URLParams.Add("id", c.account)
		return h(c)
	}
}

func getAccount(c *call) (any, error) { return withAccountID(accounts.get)(c) }

func listAccounts(c *call) (any, error) {
	p := readParams(c.r.URL)
	q, m := readQuery(c, p, reflect.TypeFor[Account]())
	var all iter.Seq[*projections.Row[domain.Account]] = c.snapshot().Accounts.All()
	page, err := projections.List(all, func(row *projections.Row[domain.Account], out *Account) { accounts.render(nil, row, out) }, accounts.fields, q)
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

// createAccount makes an account and its first key together.
func createAccount(c *call) (any, error) {
	p := readParams(c.r.URL)
	given, name, _, err := accounts.readCreate(c, p)
	if err != nil {
		return nil, err
	}
	name = domain.NewName(name.ID(), "accounts", name.ID())
	p.violations.Require(name.ID() != domain.System, "accountId", "%q is the operator's own account: choose another", domain.System)
	account := domain.Intend(domain.Accounts, name, accounts.create(c, name, given))
	if err := refused(c, account, p, accounts.prefixed); err != nil {
		return nil, err
	}
	keyName := domain.NewName(name.ID(), domain.APIKeys.Collection, firstKey)
	key, err := MintKey(c.Pepper, keyName)
	if err != nil {
		return nil, err
	}
	mint := domain.Intend(domain.APIKeys, keyName, domain.Command[domain.APIKey](domain.CreateAPIKey{
		APIKeySpec: domain.APIKeySpec{DisplayName: "first key", Role: domain.RoleAdmin},
		Hash:       key.Hash, Prefix: key.Prefix, CreatedBy: string(c.caller.key)}))
	if err := c.do(account, mint); err != nil {
		return nil, accounts.prefixed(err)
	}
	made, err := accounts.wire(c, name)
	if err != nil {
		return nil, err
	}
	shown, err := apiKeys.wire(c, keyName)
	return createdAccount{made, shown, key.Text}, err
}

func suspendAccount(c *call) (any, error) {
	var asked struct {
		SuspendState string `json:"suspendState"`
		Reason       string `json:"reason"`
	}
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
	if err := readParams(c.r.URL).err(); err != nil {
		return nil, err
	}
	if err := c.do(domain.Intend(domain.Accounts, name, command)); err != nil {
		return nil, err
	}
	return accounts.wire(c, name)
}

// digest is the fingerprint of the world as it is now: two installations, or
// one before and after a rebuild, can be compared by it.
func digest(c *call) (any, error) {
	if c.caller.account != publicAccount || c.caller.role != domain.RoleAdmin {
		if err := c.caller.may(toOperate); err != nil {
			return nil, err
		}
	}
	return c.snapshot().Digest()
}

// specified is an enumeration's value as the domain keeps it: nothing when it
// is the unspecified one.
func specified(enum string) string {
	if strings.HasSuffix(enum, "_UNSPECIFIED") {
		return ""
	}
	return enum
}

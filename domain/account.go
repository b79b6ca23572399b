package domain

import (
	"slices"
	"time"
)

// An account owns every other resource. The operator creates and suspends it.
//
//	(none) --CreateAccount--> READY
//	READY  --UpdateAccount, SetAccountNodes, SetQueueWeight, SetJobAccelerators--> READY
//	READY  --SuspendAccount--> READY, suspendState set: jobs pause, inference returns 412
//	READY  --RestoreAccount--> READY, UNSUSPENDED: jobs continue
var Accounts = NewKind("accounts", map[string]Event[Account]{
	"account.created.v1":            AccountCreated{},
	"account.updated.v1":            AccountUpdated{},
	"account.suspended.v1":          AccountSuspended{},
	"account.restored.v1":           AccountRestored{},
	"account.nodesSet.v1":           AccountNodesSet{},
	"account.queueWeightSet.v1":     QueueWeightSet{},
	"account.jobAcceleratorsSet.v1": JobAcceleratorsSet{},
})

// MaxEmail is the maximum length of an e-mail address in characters: what fits into an SMTP path
// (RFC 5321, 4.5.3.1.3) without its brackets.
const MaxEmail = 254

// Account types and states.
const (
	Enterprise   = "ENTERPRISE"
	AccountReady = "READY"
	Unsuspended  = "UNSUSPENDED"
)

// SuspendStates are the values of suspendState of a suspended account.
var SuspendStates = []string{"FAILED_PAYMENTS", "CREDIT_DEPLETED", "MONTHLY_SPEND_LIMIT_EXCEEDED",
	"BLOCKED_BY_ABUSE_RULE"}

// AccountSpec holds the fields of an account that the operator sets.
type AccountSpec struct {
	Email       string `json:"email"`
	DisplayName string `json:"displayName"`
	AccountType string `json:"accountType,omitempty"`
}

// Account is the state of one account.
type Account struct {
	AccountSpec
	State        string     `json:"state"`
	SuspendState string     `json:"suspendState"`
	Status       Status     `json:"status"`
	Nodes        NodePolicy `json:"nodes,omitzero"`     // which nodes the account's jobs and replicas may use
	FirstKey     *FirstKey  `json:"firstKey,omitempty"` // first API key; nil if an earlier version created the account
	// QueueWeight is the account's share of the cluster in the queue of jobs, relative to the
	// weights of the other accounts with jobs. 0 stands for 1.
	QueueWeight int `json:"queueWeight,omitempty"`
	// JobAccelerators is the operator's table of the accelerators that the account's jobs get;
	// empty if the operator has set none.
	JobAccelerators JobAccelerators `json:"jobAccelerators,omitempty"`
}

// A FirstKey is the admin key that CreateAccount records with the account, so that no account
// exists without a key. The API key itself is created right after the account.
type FirstKey struct {
	ID  string        `json:"id"`
	Key APIKeyCreated `json:"key"`
}

// Exists implements State.
func (a Account) Exists() bool { return a.State != "" }

// StateName implements StateNamer.
func (a Account) StateName() string { return a.State }

// Suspended reports whether the account is suspended: it must not start jobs or replicas, or call
// models.
func (a Account) Suspended() bool { return a.SuspendState != Unsuspended }

type AccountCreated struct {
	AccountSpec
	FirstKey *FirstKey `json:"firstKey,omitempty"`
}

func (e AccountCreated) Evolve(a *Account) {
	*a = Account{AccountSpec: e.AccountSpec, State: AccountReady, SuspendState: Unsuspended, Status: StatusOf(nil),
		FirstKey: e.FirstKey}
}

type AccountUpdated struct{ AccountSpec }

func (e AccountUpdated) Evolve(a *Account) { a.AccountSpec = e.AccountSpec }

type AccountSuspended struct {
	SuspendState string `json:"suspendState"`
	Reason       string `json:"reason"`
}

func (e AccountSuspended) Evolve(a *Account) {
	a.SuspendState, a.Status = e.SuspendState, Status{FailedPrecondition.String(), e.Reason}
}

type AccountRestored struct{}

func (AccountRestored) Evolve(a *Account) { a.SuspendState, a.Status = Unsuspended, StatusOf(nil) }

// CreateAccount creates an account and records its first API key.
type CreateAccount struct {
	AccountSpec
	FirstKey *FirstKey `json:",omitempty"`
}

func (c CreateAccount) Decide(a Account, _ time.Time) (Event[Account], error) {
	if a.Exists() {
		return nil, alreadyExists("an account")
	}
	return AccountCreated(c), c.check()
}

// UpdateAccount replaces the account's AccountSpec.
type UpdateAccount struct{ AccountSpec }

func (c UpdateAccount) Decide(a Account, _ time.Time) (Event[Account], error) {
	switch {
	case !a.Exists():
		return nil, notFound("account")
	case a.AccountSpec == c.AccountSpec:
		return nil, nil
	}
	return AccountUpdated(c), c.check()
}

// SuspendAccount stops an account's work until it is restored.
type SuspendAccount struct {
	SuspendState string
	Reason       string
}

func (c SuspendAccount) Decide(a Account, _ time.Time) (Event[Account], error) {
	var v Violations
	v.Require(slices.Contains(SuspendStates, c.SuspendState), "suspendState", "%s",
		OneOfRule(c.SuspendState, SuspendStates))
	v.Require(len([]rune(c.Reason)) <= MaxDescription, "reason", "must have at most %d characters", MaxDescription)
	switch err := v.Err(); {
	case !a.Exists():
		return nil, notFound("account")
	case err != nil:
		return nil, err
	case a.SuspendState == c.SuspendState:
		return nil, nil
	}
	return AccountSuspended(c), nil
}

// RestoreAccount ends the suspension of an account.
type RestoreAccount struct{}

func (RestoreAccount) Decide(a Account, _ time.Time) (Event[Account], error) {
	switch {
	case !a.Exists():
		return nil, notFound("account")
	case !a.Suspended():
		return nil, nil
	}
	return AccountRestored{}, nil
}

func (s AccountSpec) check() error {
	var v Violations
	checkShortName(&v, s.DisplayName)
	checkEmail(&v, s.Email)
	oneOf(&v, "accountType", s.AccountType, Enterprise, "ACCOUNT_TYPE_UNSPECIFIED")
	return v.Err()
}

func checkEmail(v *Violations, email string) {
	v.Require(len([]rune(email)) <= MaxEmail, "email", "must have at most %d characters", MaxEmail)
}

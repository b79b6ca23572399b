package api

import (
	"errors"
	"strings"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// deletionTries is how often a delete begins anew because another one was
// abandoned meanwhile, or the resource was deleted and created again.
const deletionTries = 16

// removes deletes a resource. One of a usable kind is reserved first, and then
// looked at again: see domain.Deletion.
func (res *resource[S, R]) removes(c *call, row *projections.Row[S], command domain.Command[S]) error {
	intent := domain.Intend(res.kind, row.Name, command)
	unchecked, ok := any(command).(interface{ Unchecked() bool })
	if !res.kind.Usable() || ok && unchecked.Unchecked() {
		_, err := c.do(intent)
		return err
	}
	decided, err := intent.Decide(res.kind.Reserved(row.State, c.now), c.now)
	if err != nil {
		return err
	}
	if decided.Type == "" { // it is deleted already
		return nil
	}
	for range deletionTries {
		if err = res.removesReserved(c, row.Name, intent); faultReason(err) != domain.ReasonNotRequested {
			return err
		}
	}
	return domain.Errorf(domain.Aborted, "%s was changed by others %d times in a row: try again", row.Name, deletionTries)
}

func (res *resource[S, R]) removesReserved(c *call, name domain.Name, intent domain.Intent) error {
	if err := c.unused(res.noun, name); err != nil {
		return err
	}
	c.now = c.Now() // a request and its delete must be close
	if _, err := c.do(domain.Intend(res.kind, name, domain.RequestDeletion(res.kind))); err != nil {
		return err
	}
	err := c.unused(res.noun, name)
	if err == nil {
		c.now = c.Now()
		_, err = c.do(intent)
	}
	var fault *domain.Error
	if errors.As(err, &fault) && fault.Reason != domain.ReasonNotRequested {
		_, _ = c.do(domain.Intend(res.kind, name, domain.AbandonDeletion(res.kind, fault.Reason))) // otherwise it ends after domain.DeletionWithin
	}
	return err
}

// faultReason returns the Reason of err if it is a *domain.Fault, otherwise "".
func faultReason(err error) string {
	var f *domain.Error
	if errors.As(err, &f) {
		return f.Reason
	}
	return ""
}

// unused refuses to delete what live work uses. Users in other accounts are
// counted and not named.
func (c *call) unused(noun string, name domain.Name) error {
	users := c.snapshot().Users(name)
	if len(users) == 0 {
		return nil
	}
	var own []string
	for _, user := range users {
		if user.Account() == name.Account() && len(own) < 10 {
			own = append(own, string(user))
		}
	}
	resources, them := "resources", "them first, or wait until they end"
	if len(users) == 1 {
		resources, them = "resource", "it first, or wait until it ends"
	}
	f := domain.Errorf(domain.FailedPrecondition, "the %s is used by %d %s (of this account: %s): delete %s", noun, len(users), resources, wire.OrNone(strings.Join(own, ", ")), them)
	f.Reason = "IN_USE"
	return f
}

// mayUse refuses a change by which a resource begins to work with one that is
// being deleted. What this does not see is decided by the order of the log:
// schedulers fail work that names what is gone.
func (c *call) mayUse(intent domain.Intent) error {
	if !c.World.View().UsesOthers(intent.Name.Collection()) {
		return nil
	}
	before, _ := c.World.Row(intent.Name)
	record, err := intent.Decide(before, c.now)
	if err != nil || record.Type == "" {
		return nil // told when it is recorded
	}
	after, err := c.World.After(intent.Name, before, record)
	if err != nil {
		return err
	}
	for _, used := range c.World.View().Leaving(intent.Name, before, after, c.now) {
		f := domain.Errorf(domain.FailedPrecondition, "%s is being deleted: name another, or try again when its deletion was refused", used)
		f.Reason = "BEING_DELETED"
		return f
	}
	return nil
}

package api

import (
	"errors"
	"strings"

	"anneal/api/request"
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
		_, err := c.Do(intent)
		return err
	}
	decided, err := intent.Decide(res.kind.Reserved(row.State, c.Time), c.Time)
	if err != nil {
		return err
	}
	if decided.Type == "" { // it is deleted already
		return nil
	}
	for range deletionTries {
		if err = res.removesReserved(c, row.Name, intent); request.ReasonOf(err) != domain.ReasonNotRequested {
			return err
		}
	}
	return domain.Errorf(domain.Aborted, "%s was changed by others %d times in a row: try again", row.Name, deletionTries)
}

func (res *resource[S, R]) removesReserved(c *call, name domain.Name, intent domain.Intent) error {
	if err := c.unused(res.noun, name); err != nil {
		return err
	}
	c.Time = c.Now() // a request and its delete must be close
	if _, err := c.Do(domain.Intend(res.kind, name, domain.RequestDeletion(res.kind))); err != nil {
		return err
	}
	err := c.unused(res.noun, name)
	if err == nil {
		c.Time = c.Now()
		_, err = c.Do(intent)
	}
	var fault *domain.Error
	if errors.As(err, &fault) && fault.Reason != domain.ReasonNotRequested {
		_, _ = c.Do(domain.Intend(res.kind, name, domain.AbandonDeletion(res.kind, fault.Reason))) // otherwise it ends after domain.DeletionWithin
	}
	return err
}

// unused refuses to delete what live work uses. Users in other accounts are
// counted and not named.
func (c *call) unused(noun string, name domain.Name) error {
	users := c.View().Users(name)
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

package rest

import (
	"errors"
	"strings"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

func (res *resource[S, R]) delete(c *call) (any, error) {
	row, err := res.row(c)
	if err != nil {
		return nil, err
	}
	p := c.Params()
	command, err := res.remove(c, row, p)
	if err == nil {
		err = p.Err()
	}
	if err == nil {
		err = res.deleteRow(c, row, command)
	}
	if err != nil {
		return nil, err
	}
	if res.afterDelete != nil {
		res.afterDelete(c, row)
	}
	return request.Empty, nil
}

// maxDeletionAttempts bounds the attempts of a delete. A delete is attempted again if a concurrent
// delete of the resource was abandoned, or the resource was deleted and created again.
const maxDeletionAttempts = 16

// deleteRow deletes a resource. If other resources can refer to it, deleteRow first records that it
// is being deleted, so that no new references are recorded, and then checks again that none exists:
// see domain.Deletion.
func (res *resource[S, R]) deleteRow(c *call, row *projections.Row[S], command domain.Command[S]) error {
	intent := domain.Intend(res.kind, row.Name, command)
	unchecked, ok := any(command).(interface{ Unchecked() bool })
	if !res.kind.Referenceable() || ok && unchecked.Unchecked() {
		_, err := c.Do(intent)
		return err
	}
	decided, err := intent.Decide(res.kind.WithDeletion(row.State, c.Time), c.Time)
	if err != nil {
		return err
	}
	if decided.Type == "" { // the resource is deleted already
		return nil
	}
	for range maxDeletionAttempts {
		if err = res.deleteReserved(c, row.Name, intent); request.ReasonOf(err) != domain.ReasonNotRequested {
			return err
		}
	}
	return domain.Errorf(domain.Aborted, "other requests changed %s during each of %d attempts to delete it: try "+
		"again", row.Name,
		maxDeletionAttempts)
}

func (res *resource[S, R]) deleteReserved(c *call, name domain.Name, intent domain.Intent) error {
	if err := requireUnused(c, res.noun, name); err != nil {
		return err
	}
	c.Time = c.Now() // the deletion request expires domain.DeletionWithin after c.Time
	if _, err := c.Do(domain.Intend(res.kind, name, domain.RequestDeletion(res.kind))); err != nil {
		return err
	}
	err := requireUnused(c, res.noun, name)
	if err == nil {
		c.Time = c.Now()
		_, err = c.Do(intent)
	}
	var domainErr *domain.Error
	if errors.As(err, &domainErr) && domainErr.Reason != domain.ReasonNotRequested {
		// if AbandonDeletion fails, the deletion request expires after domain.DeletionWithin
		_, _ = c.Do(domain.Intend(res.kind, name, domain.AbandonDeletion(res.kind, domainErr.Reason)))
	}
	return err
}

// requireUnused returns an error if other resources refer to the resource. The error states their
// number, and the names of up to ten of them in the same account.
func requireUnused(c *call, noun string, name domain.Name) error {
	users := c.View().Referrers(name)
	if len(users) == 0 {
		return nil
	}
	var own []string
	for _, user := range users {
		if user.Account() == name.Account() && len(own) < 10 {
			own = append(own, string(user))
		}
	}
	resources, them := "resources", "those resources first, or wait until they end"
	if len(users) == 1 {
		resources, them = "resource", "that resource first, or wait until it ends"
	}
	f := domain.Errorf(domain.FailedPrecondition, "the %s is used by %d %s (in this account: %s): delete %s", noun,
		len(users), resources, wire.OrNone(strings.Join(own, ", ")), them)
	f.Reason = "IN_USE"
	return f
}

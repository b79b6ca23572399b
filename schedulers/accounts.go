package schedulers

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Accounts creates the first API key of an account (see domain.FirstKey) if the server stopped
// after it recorded the account and before it recorded the key. It does not create a deleted key
// again.
type Accounts struct{}

// Name implements Scheduler.
func (Accounts) Name() string { return "accounts" }

// MinRest implements PacedScheduler.
func (Accounts) MinRest() time.Duration { return pacedRest }

// Plan implements Scheduler.
func (Accounts) Plan(v *projections.View, _ time.Time) (plan Plan) {
	for row := range v.Accounts.All() {
		first := row.State.FirstKey
		if first == nil {
			continue
		}
		name := domain.NewName(row.Name.ID(), domain.APIKeys.Collection, first.ID)
		if v.APIKeys.Version(name) == 0 {
			plan.add(domain.Intend(domain.APIKeys, name, domain.Command[domain.APIKey](domain.CreateAPIKey(first.Key))))
		}
	}
	return plan
}

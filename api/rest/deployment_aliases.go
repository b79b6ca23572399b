package rest

import (
	"anneal/api/routing"
	"anneal/domain"
)

// requireAliases adds a violation for each of the aliases that is bound to a live deployment other
// than name.
func requireAliases(c *call, v *domain.Violations, name domain.Name, aliases []string) {
	for _, alias := range aliases {
		if row := routing.BoundTo(c.View(), alias); row != nil && row.Name != name {
			v.Add("aliases", "%s is bound to %s: remove the alias from that deployment first: `anneal deployment alias "+
				"%s NAME…` replaces its aliases by those that you name", alias, row.Name, row.Name)
		}
	}
}

package rest

import (
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// weakKeySize is the size in bytes below which a client could guess a direct-route key by sending
// many requests.
const weakKeySize = 16

// addHandle sets DirectRouteHandle to the host name of the deployment's direct route.
func addHandle(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	out.DirectRouteHandle = c.Routes.HandleOf(row)
}

// warnOfWeakKeys warns of keys of a working direct route that are shorter than weakKeySize.
func warnOfWeakKeys(c *call, d *Deployment) {
	weak := func(key string) bool { return len(key) < weakKeySize }
	if c.Routes != nil && d.DirectRouteType == domain.DirectInternet && slices.ContainsFunc(d.DirectRouteAPIKeys, weak) {
		c.Warn("directRouteApiKeys: a key of fewer than %d bytes is easily guessed: use longer keys", weakKeySize)
	}
}

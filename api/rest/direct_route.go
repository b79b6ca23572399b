package rest

import (
	"slices"

	"anneal/domain"
	"anneal/projections"
)

// weakKeySize is the size in bytes below which an attacker could guess a direct route's key by
// sending many requests.
const weakKeySize = 16

// addHandle sets out.DirectRouteHandle to the host name of the deployment's direct route.
func addHandle(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	out.DirectRouteHandle = c.Routes.HandleOf(row)
}

// addServiceHandle sets out.DirectRouteHandle to the host name of the training service of the job,
// and adds the place of the job in the queue.
func addServiceHandle(c *call, row *projections.Row[domain.TrainerJob], out *TrainerJob) {
	addQueue(c, row, out)
	out.DirectRouteHandle = c.Routes.HandleOfJob(row)
}

// warnOfWeakKeys adds a warning if a key of the direct route is shorter than weakKeySize.
func warnOfWeakKeys(c *call, d *Deployment) {
	weak := func(key string) bool { return len(key) < weakKeySize }
	if c.Routes != nil && d.DirectRouteType == domain.DirectInternet && slices.ContainsFunc(d.DirectRouteAPIKeys, weak) {
		c.Warn("directRouteApiKeys: keys of fewer than %d bytes are easily guessed: use longer keys", weakKeySize)
	}
}

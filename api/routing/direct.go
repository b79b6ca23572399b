package routing

import (
	"crypto/hmac"
	"encoding/base32"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// DirectRoutes map host names to deployments: LABEL.DOMAIN reaches the inference operations of one
// deployment and nothing else. A nil *DirectRoutes has no routes.
type DirectRoutes struct {
	Domain string
	pepper []byte
	world  *projections.World

	mu    sync.Mutex
	found map[string]domain.Name // cached deployments by label; Find checks each cached deployment
}

// NewDirectRoutes returns the routes below domainName, or nil when domainName is "". Labels are
// derived from the pepper.
func NewDirectRoutes(domainName string, pepper []byte, world *projections.World) *DirectRoutes {
	if domainName == "" {
		return nil
	}
	return &DirectRoutes{Domain: domainName, pepper: pepper, world: world, found: map[string]domain.Name{}}
}

// LabelOf returns the label of the request's host name. It returns false for a host name outside of
// the domain.
func (d *DirectRoutes) LabelOf(r *http.Request) (string, bool) {
	if d == nil {
		return "", false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.CutSuffix(strings.TrimSuffix(strings.ToLower(host), "."), "."+d.Domain)
}

// Find returns the deployment with a label, or false when there is none. It caches deployments that
// it finds, but not labels without a deployment, because a deployment with the label may be created
// later.
func (d *DirectRoutes) Find(label string) (domain.Name, bool) {
	if !d.isAuthentic(label) {
		return "", false
	}
	v := d.world.View()
	d.mu.Lock()
	name, cached := d.found[label]
	d.mu.Unlock()
	if row, ok := v.Deployments.Get(name); cached && ok && row.State.Reachable() && d.label(row) == label {
		return name, true
	}
	for row := range v.Deployments.All() {
		if row.State.Reachable() && d.label(row) == label {
			d.mu.Lock()
			d.found[label] = row.Name
			d.mu.Unlock()
			return row.Name, true
		}
	}
	return "", false
}

// HandleOf returns the directRouteHandle of a deployment: for directRouteType INTERNET the host name
// of its direct route, or "" when the deployment has none.
func (d *DirectRoutes) HandleOf(row *projections.Row[domain.Deployment]) string {
	if d == nil || !row.State.Reachable() {
		return ""
	}
	return d.label(row) + "." + d.Domain
}

// A label consists of labelBody bytes, which cannot be computed from the deployment's name without
// the pepper, and labelCheck bytes that authenticate the first bytes. A guessed label is rejected
// without a search for its deployment.
const (
	labelBody  = 12
	labelCheck = 8
)

var labelEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// label returns the first part of the host name of a deployment's direct route. The label does not
// change while the deployment exists.
func (d *DirectRoutes) label(row *projections.Row[domain.Deployment]) string {
	created := strconv.FormatInt(row.CreateTime.UnixNano(), 10)
	id := strings.Join([]string{"direct route", string(row.Name), created}, "\x00")
	body := request.HashKey(d.pepper, id)[:labelBody]
	return labelEncoding.EncodeToString(append(body, d.checkOf(body)...))
}

// isAuthentic reports whether the label was derived from this installation's pepper.
func (d *DirectRoutes) isAuthentic(label string) bool {
	data, err := labelEncoding.DecodeString(label)
	return err == nil && len(data) == labelBody+labelCheck && hmac.Equal(d.checkOf(data[:labelBody]), data[labelBody:])
}

func (d *DirectRoutes) checkOf(body []byte) []byte {
	return request.HashKey(d.pepper, "direct route's label\x00"+string(body))[:labelCheck]
}

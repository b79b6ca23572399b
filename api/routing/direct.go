package routing

import (
	"crypto/hmac"
	"encoding/base32"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// DirectRoutes maps host names to deployments and to trainer jobs: the host name LABEL.DOMAIN
// reaches the inference operations of one deployment, or the training service of one trainer job
// with serviceMode, and nothing else. A nil *DirectRoutes has no host names.
type DirectRoutes struct {
	Domain string
	pepper []byte
	world  *projections.World

	mu sync.Mutex
	// cache of deployments and jobs by label; Find checks that a cached one is still valid
	found map[string]domain.Name
}

// NewDirectRoutes returns the direct routes below the domain domainName, or nil if it is "". The
// labels are derived from the pepper.
func NewDirectRoutes(domainName string, pepper []byte, world *projections.World) *DirectRoutes {
	if domainName == "" {
		return nil
	}
	return &DirectRoutes{Domain: domainName, pepper: pepper, world: world, found: map[string]domain.Name{}}
}

// LabelOf returns the label in the host name of a request. It returns false if the host name does
// not belong to the domain.
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

// Find returns the deployment or the trainer job with a label, or false if there is none. It does
// not cache misses, because a deployment or a job with the label may be created later.
func (d *DirectRoutes) Find(label string) (domain.Name, bool) {
	if !d.isAuthentic(label) {
		return "", false
	}
	v := d.world.View()
	d.mu.Lock()
	name, cached := d.found[label]
	d.mu.Unlock()
	if cached && d.has(v, name, label) {
		return name, true
	}
	for row := range v.Deployments.All() {
		if row.State.Reachable() && d.label(row.Name, row.CreateTime) == label {
			return d.remember(label, row.Name), true
		}
	}
	for row := range projections.TableOf(v, domain.TrainerJobs).All() {
		if row.State.HasService() && d.label(row.Name, row.CreateTime) == label {
			return d.remember(label, row.Name), true
		}
	}
	return "", false
}

func (d *DirectRoutes) remember(label string, name domain.Name) domain.Name {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.found[label] = name
	return name
}

// has reports whether the deployment or job name has the label.
func (d *DirectRoutes) has(v *projections.View, name domain.Name, label string) bool {
	if row, ok := v.Deployments.Get(name); ok {
		return row.State.Reachable() && d.label(row.Name, row.CreateTime) == label
	}
	row, ok := projections.TableOf(v, domain.TrainerJobs).Get(name)
	return ok && row.State.HasService() && d.label(row.Name, row.CreateTime) == label
}

// HandleOf returns the directRouteHandle of a deployment: the host name of its direct route. It
// returns "" if the deployment has no direct route.
func (d *DirectRoutes) HandleOf(row *projections.Row[domain.Deployment]) string {
	if d == nil || !row.State.Reachable() {
		return ""
	}
	return d.label(row.Name, row.CreateTime) + "." + d.Domain
}

// HandleOfJob returns the directRouteHandle of a trainer job: the host name of its training
// service. It returns "" if the job has none.
func (d *DirectRoutes) HandleOfJob(row *projections.Row[domain.TrainerJob]) string {
	if d == nil || !row.State.HasService() {
		return ""
	}
	return d.label(row.Name, row.CreateTime) + "." + d.Domain
}

// A label consists of labelBody bytes, which are derived from the name of the deployment or job
// with the pepper, and labelCheck bytes, which are a MAC of the first labelBody bytes. So a guessed
// label is rejected without a search.
const (
	labelBody  = 12
	labelCheck = 8
)

var labelEncoding = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// label returns the first part of the host name of the direct route of a deployment or job, which
// was created at the given time. It does not change while the deployment or job exists.
func (d *DirectRoutes) label(name domain.Name, created time.Time) string {
	at := strconv.FormatInt(created.UnixNano(), 10)
	id := strings.Join([]string{"direct route", string(name), at}, "\x00")
	body := request.HashKey(d.pepper, id)[:labelBody]
	return labelEncoding.EncodeToString(append(body, d.checkOf(body)...))
}

// isAuthentic reports whether a label was derived from this installation's pepper.
func (d *DirectRoutes) isAuthentic(label string) bool {
	data, err := labelEncoding.DecodeString(label)
	return err == nil && len(data) == labelBody+labelCheck && hmac.Equal(d.checkOf(data[:labelBody]), data[labelBody:])
}

func (d *DirectRoutes) checkOf(body []byte) []byte {
	return request.HashKey(d.pepper, "direct route's label\x00"+string(body))[:labelCheck]
}

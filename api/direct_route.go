package api

import (
	"context"
	"crypto/hmac"
	"encoding/base32"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// easyKey is how many bytes a direct route's key should have at least: what is
// shorter can be guessed by who asks often enough.
const easyKey = 16

// directRoutes lead from host names to deployments: LABEL.DOMAIN reaches the
// inference operations of one deployment and nothing else.
type directRoutes struct {
	*Server
	routes chi.Router

	mu    sync.Mutex
	found map[string]domain.Name // deployments by labels that were asked for; checked at each use
}

func newDirectRoutes(s *Server) *directRoutes {
	d := &directRoutes{Server: s, routes: chi.NewRouter(), found: map[string]domain.Name{}}
	d.routes.Use(s.identify, s.observe, s.recover, d.lead, middleware.GetHead)
	d.routes.NotFound(noSuchDirectPath)
	d.routes.MethodNotAllowed(s.noSuchMethod)
	for _, op := range inferenceOperations(s) {
		for _, path := range []string{op.Path, strings.TrimPrefix(op.Path, "/inference")} {
			one := op
			one.Path = path
			s.offer(d.routes, &one)
		}
	}
	return d
}

// labelOf is what stands before the domain in the request's host name; false
// for any other host.
func (d *directRoutes) labelOf(r *http.Request) (string, bool) {
	if d == nil {
		return "", false
	}
	host := r.Host
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.CutSuffix(strings.TrimSuffix(strings.ToLower(host), "."), "."+d.Direct)
}

func (d *directRoutes) serve(label string, w http.ResponseWriter, r *http.Request) {
	d.routes.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.DirectLabelKey{}, label)))
}

// lead finds the deployment before anything else of the request is looked at.
func (d *directRoutes) lead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		label, _ := r.Context().Value(request.DirectLabelKey{}).(string)
		name, ok := d.find(label)
		if !ok {
			request.WriteError(w, request.ErrorOf(request.NotFoundReason("DIRECT_ROUTE_NOT_FOUND", "no deployment is reached by this host name: a deployment shows its own as directRouteHandle")), request.RequestID(r), true)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), request.DirectKey{}, name)))
	})
}

// find is the deployment with a label. What was found is remembered; what is
// not there is looked for again, since it may have been made meanwhile.
func (d *directRoutes) find(label string) (domain.Name, bool) {
	if !d.ours(label) {
		return "", false
	}
	v := d.World.View()
	d.mu.Lock()
	name, known := d.found[label]
	d.mu.Unlock()
	if row, ok := v.Deployments.Get(name); known && ok && row.State.Reachable() && d.label(row) == label {
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

// A label is labelBody bytes that nobody can tell from the deployment's name,
// and labelCheck bytes made of these, so that a guess is known for one without
// looking at any deployment.
const (
	labelBody  = 12
	labelCheck = 8
)

var labelCode = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567")

// label is the first part of a deployment's host name, the same as long as the
// deployment is there.
func (s *Server) label(row *projections.Row[domain.Deployment]) string {
	made := strconv.FormatInt(row.CreateTime.UnixNano(), 10)
	body := request.HashKey(s.Pepper, strings.Join([]string{"direct route", string(row.Name), made}, "\x00"))[:labelBody]
	return labelCode.EncodeToString(append(body, s.checkOf(body)...))
}

// ours tells whether the label was made with this installation's pepper.
func (s *Server) ours(label string) bool {
	data, err := labelCode.DecodeString(label)
	return err == nil && len(data) == labelBody+labelCheck && hmac.Equal(s.checkOf(data[:labelBody]), data[labelBody:])
}

func (s *Server) checkOf(body []byte) []byte {
	return request.HashKey(s.Pepper, "direct route's label\x00"+string(body))[:labelCheck]
}

// showHandle shows the host name by which a deployment is reached.
func showHandle(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	if c.server.Direct != "" && row.State.Reachable() {
		out.DirectRouteHandle = c.server.label(row) + "." + c.server.Direct
	}
}

func noSuchDirectPath(w http.ResponseWriter, r *http.Request) {
	request.WriteError(w, request.ErrorOf(request.NotFoundReason("NO_SUCH_PATH", "there is no such path on a deployment's own host name: it answers /v1/completions, /v1/chat/completions and /v1/models; everything else is at the server's")), request.RequestID(r), true)
}

// addressDirect is the target of a request that took a direct route: the
// deployment, whose model or an addon of which may be named.
func (c *call) addressDirect(model string) (target, error) {
	row, err := c.deployment(c.Direct)
	if err != nil || model == string(c.Direct) {
		return c.ofDirect(row), err
	}
	left, right, pinned := strings.Cut(model, "#")
	wanted, ok := longName(left, domain.Models.Collection)
	if at, named := longName(right, domain.Deployments.Collection); !ok || pinned && (!named || at != c.Direct) {
		return target{}, request.NotFoundReason("MODEL_NOT_DEPLOYED", "this host name reaches %s alone: leave the model out, or name it or its model", c.Direct)
	}
	if row.State.BaseModel != string(wanted) {
		return c.asAddon(row, wanted)
	}
	return c.unnamed(row, ofBase), nil
}

func (c *call) ofDirect(row *projections.Row[domain.Deployment]) target {
	if row == nil {
		return target{}
	}
	return c.unnamed(row, ofDeployment)
}

// warnOfRoute tells what of a deployment's direct route has no effect here, or
// a weak one.
func (c *call) warnOfRoute(d *Deployment) {
	keys := d.DirectRouteAPIKeys
	easy := slices.ContainsFunc(keys, func(key string) bool { return len(key) < easyKey })
	routeless := d.DirectRouteType == "" || d.DirectRouteType == "DIRECT_ROUTE_TYPE_UNSPECIFIED"
	switch {
	case routeless && len(keys) > 0:
		c.Warn("directRouteApiKeys: kept, but unused without directRouteType")
	case routeless:
	case d.DirectRouteType != domain.DirectInternet:
		c.Warn("directRouteType: kept, but %s needs that cloud's own service attachment, which is not made here: only INTERNET has a directRouteHandle", d.DirectRouteType)
	case c.server.Direct == "":
		c.Warn("directRouteType: kept, but this server has no domain for direct routes: its operator starts it with --direct-domain")
	case easy:
		c.Warn("directRouteApiKeys: a key of fewer than %d bytes is easily guessed: give longer ones", easyKey)
	}
}

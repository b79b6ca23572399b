package api

import (
	"context"
	"crypto/hmac"
	"encoding/base32"
	"errors"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

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
	for _, op := range inferenceOperations() {
		for _, path := range []string{op.path, strings.TrimPrefix(op.path, "/inference")} {
			one := op
			one.path = path
			s.offer(d.routes, &one)
		}
	}
	return d
}

type (
	directLabelKey struct{}
	directKey      struct{}
)

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
	d.routes.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), directLabelKey{}, label)))
}

// lead finds the deployment before anything else of the request is looked at.
func (d *directRoutes) lead(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		label, _ := r.Context().Value(directLabelKey{}).(string)
		name, ok := d.find(label)
		if !ok {
			refuse(w, errorOf(missing("DIRECT_ROUTE_NOT_FOUND", "no deployment is reached by this host name: a deployment shows its own as directRouteHandle")), requestID(r), true)
			return
		}
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), directKey{}, name)))
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
	body := hashKey(s.Pepper, strings.Join([]string{"direct route", string(row.Name), made}, "\x00"))[:labelBody]
	return labelCode.EncodeToString(append(body, s.checkOf(body)...))
}

// ours tells whether the label was made with this installation's pepper.
func (s *Server) ours(label string) bool {
	data, err := labelCode.DecodeString(label)
	return err == nil && len(data) == labelBody+labelCheck && hmac.Equal(s.checkOf(data[:labelBody]), data[labelBody:])
}

func (s *Server) checkOf(body []byte) []byte {
	return hashKey(s.Pepper, "direct route's label\x00"+string(body))[:labelCheck]
}

// showHandle shows the host name by which a deployment is reached.
func showHandle(c *call, row *projections.Row[domain.Deployment], out *Deployment) {
	if c.Direct != "" && row.State.Reachable() {
		out.DirectRouteHandle = c.label(row) + "." + c.Direct
	}
}

// directOf is the deployment whose direct route the request took; "" is none.
func directOf(r *http.Request) domain.Name {
	name, _ := r.Context().Value(directKey{}).(domain.Name)
	return name
}

func isDirect(r *http.Request) bool {
	_, direct := r.Context().Value(directLabelKey{}).(string)
	return direct
}

func noSuchDirectPath(w http.ResponseWriter, r *http.Request) {
	refuse(w, errorOf(missing("NO_SUCH_PATH", "there is no such path on a deployment's own host name: it answers /v1/completions, /v1/chat/completions and /v1/models; everything else is at the server's")), requestID(r), true)
}

// hashDirectKey binds a key to its deployment.
func hashDirectKey(pepper []byte, deployment domain.Name, key string) []byte {
	return hashKey(pepper, strings.Join([]string{"direct route key", string(deployment), key}, "\x00"))
}

func (c *call) hashDirectKeys(deployment domain.Name, keys []string) (hashes [][]byte) {
	for _, key := range keys {
		hashes = append(hashes, hashDirectKey(c.Pepper, deployment, key))
	}
	return hashes
}

// whoAsks finds out who sends the request: the holder of an API key or, on a
// direct route, of one of its keys, who may ask models for the deployment's
// account.
func (c *call) whoAsks() (caller, error) {
	if c.direct != "" {
		row, ok := c.snapshot().Deployments.Get(c.direct)
		if text, err := credential(c.r, false); ok && err == nil && holds(row.State.DirectKeys, hashDirectKey(c.Pepper, c.direct, text)) {
			return caller{c.direct, c.direct.Account(), domain.RoleInference}, nil
		}
	}
	who, err := authenticate(c.World, c.Pepper, c.r, isAudio(c.r), c.now)
	var f *domain.Error
	if c.direct != "" && errors.As(err, &f) && f.Reason != "API_KEY_MISSING" && f.Reason != "API_KEY_EXPIRED" {
		return caller{}, unauthenticated("API_KEY_UNKNOWN", "the key is none of the deployment's directRouteApiKeys and no API key of its account: send one of them in the header Authorization: Bearer KEY")
	}
	return who, err
}

// holds compares with every key, so that the time tells nothing of them.
func holds(keys [][]byte, hash []byte) (found bool) {
	for _, key := range keys {
		found = hmac.Equal(key, hash) || found
	}
	return found
}

// mayTakeRoute lets those through whose role may ask models in the deployment's
// account.
func (c *call) mayTakeRoute() error {
	c.account = c.direct.Account()
	return c.caller.authorise(c.account, toInfer)
}

// addressDirect is the target of a request that took a direct route: the
// deployment, whose model or an addon of which may be named.
func (c *call) addressDirect(model string) (target, error) {
	row, err := c.deployment(c.direct)
	if err != nil || model == string(c.direct) {
		return c.ofDirect(row), err
	}
	left, right, pinned := strings.Cut(model, "#")
	wanted, ok := longName(left, domain.Models.Collection)
	if at, named := longName(right, domain.Deployments.Collection); !ok || pinned && (!named || at != c.direct) {
		return target{}, missing("MODEL_NOT_DEPLOYED", "this host name reaches %s alone: leave the model out, or name it or its model", c.direct)
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
		c.warn("directRouteApiKeys: kept, but unused without directRouteType")
	case routeless:
	case d.DirectRouteType != domain.DirectInternet:
		c.warn("directRouteType: kept, but %s needs that cloud's own service attachment, which is not made here: only INTERNET has a directRouteHandle", d.DirectRouteType)
	case c.Direct == "":
		c.warn("directRouteType: kept, but this server has no domain for direct routes: its operator starts it with --direct-domain")
	case easy:
		c.warn("directRouteApiKeys: a key of fewer than %d bytes is easily guessed: give longer ones", easyKey)
	}
}

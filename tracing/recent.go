package tracing

import (
	"strings"
	"sync"
	"time"

	"anneal/domain"
)

// Bounds of Recent.
const (
	// MaxEvents is the maximum number of events of one resource in one trace. Without it, a trace
	// would grow as long as the resource exists, for example with events of the autoscaler.
	MaxEvents = 64
	// maxUses is the maximum number of attempts to change a resource in one trace. An attempt may
	// record no event, such as a step of a plan that is refused again and again.
	maxUses = 4 * MaxEvents
	// MaxAge is the time after which the events of a resource no longer belong to a trace.
	MaxAge = 24 * time.Hour
	// maxResources is the maximum number of resources in Recent, which keeps at least the newest half.
	maxResources = 20_000
)

// Recent has the trace context of the newest event of each resource that a traced request changed
// recently. Schedulers and the coordinator, which act on the state of a resource later, continue
// its trace. A nil *Recent is always empty.
type Recent struct {
	mu              sync.Mutex
	newest, earlier map[domain.Name]recent // earlier is the former newest, which is replaced when newest is full
}

type recent struct {
	trace  domain.Trace
	events int       // number of events of the resource in the trace
	since  time.Time // time of the first of these events
	uses   int       // how often Of returned the trace
}

// NewRecent returns an empty Recent.
func NewRecent() *Recent { return &Recent{newest: map[domain.Name]recent{}} }

// Add records the trace context of an event of a resource. It ignores nodes, because events of
// unrelated requests change them.
func (r *Recent) Add(name domain.Name, trace domain.Trace, at, now time.Time) {
	if r == nil || trace.Parent == "" || now.Sub(at) > MaxAge || name.Collection() == domain.Nodes.Collection {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	next := recent{trace: trace, events: 1, since: at}
	if before, ok := r.get(name); ok && traceID(before.trace) == traceID(trace) {
		next.events, next.uses, next.since = before.events+1, before.uses, before.since
	}
	r.put(name, next)
}

// Of returns the trace context to continue for a change of a resource; the zero value for none.
func (r *Recent) Of(name domain.Name, now time.Time) domain.Trace {
	if r == nil {
		return domain.Trace{}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	found, ok := r.get(name)
	if !ok || found.events >= MaxEvents || found.uses >= maxUses || now.Sub(found.since) > MaxAge {
		return domain.Trace{}
	}
	found.uses++
	r.put(name, found)
	return found.trace
}

// get returns the entry of a resource. The caller holds the mutex.
func (r *Recent) get(name domain.Name) (recent, bool) {
	found, ok := r.newest[name]
	if !ok {
		found, ok = r.earlier[name]
	}
	return found, ok
}

// put stores the entry of a resource. The caller holds the mutex.
func (r *Recent) put(name domain.Name, entry recent) {
	if _, has := r.newest[name]; !has && len(r.newest) >= maxResources/2 {
		r.earlier, r.newest = r.newest, map[domain.Name]recent{}
	}
	r.newest[name] = entry
}

// traceID returns the trace ID of a traceparent, its second part.
func traceID(t domain.Trace) string {
	_, rest, _ := strings.Cut(t.Parent, "-")
	id, _, _ := strings.Cut(rest, "-")
	return id
}

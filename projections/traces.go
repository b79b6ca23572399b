package projections

import (
	"anneal/domain"
	"anneal/tracing"
)

// KeepTraces makes the world keep the trace contexts of recent events, for TraceOf. It must be called
// before Run.
func (w *World) KeepTraces() { w.traces = tracing.NewRecent() }

// TraceOf returns the trace context that a change of a resource continues, because a traced request
// caused the resource's newest event; the zero value for none, and without KeepTraces.
func (w *World) TraceOf(name domain.Name) domain.Trace {
	if w.traces == nil {
		return domain.Trace{}
	}
	return w.traces.Of(name, w.now())
}

package projections

import (
	"anneal/domain"
	"anneal/tracing"
)

// KeepTraces makes a world keep the trace contexts of recent events, for TraceOf. It must be called
// before Run.
func KeepTraces(w *World) { w.traces = tracing.NewRecent() }

// TraceOf returns the trace context that a change of a resource continues, because a traced request
// caused the resource's newest event; the zero value for none, and without KeepTraces.
func TraceOf(w *World, name domain.Name) domain.Trace {
	if w.traces == nil {
		return domain.Trace{}
	}
	return w.traces.Of(name, w.now())
}

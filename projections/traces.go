package projections

import (
	"anneal/domain"
	"anneal/tracing"
)

// KeepTraces makes a world keep the trace contexts of recent events, for TraceOf. It must be called
// before Run.
func KeepTraces(w *World) { w.traces = tracing.NewRecent() }

// TraceOf returns the trace context that a change of a resource continues: the one of the resource's
// newest event, if a traced request caused that event. Otherwise, and without KeepTraces, it returns the
// zero value.
func TraceOf(w *World, name domain.Name) domain.Trace {
	if w.traces == nil {
		return domain.Trace{}
	}
	return w.traces.Of(name, w.now())
}

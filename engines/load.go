package engines

import (
	"context"
	"time"
)

// A LoadReporter is a Model that reports its load.
type LoadReporter interface {
	Model
	// Load returns the load of the model. It may wait for the end of a step, but no longer than ctx.
	Load(ctx context.Context) (ModelLoad, error)
}

// ModelLoad is the load of a model at one moment. A number that the engine does not report is
// UnknownLoad.
type ModelLoad struct {
	// PendingTokens is the number of prompt tokens that running and waiting requests need and that
	// are neither computed nor cached.
	PendingTokens int64 `json:"pendingTokens"`
	Running       int64 `json:"running"`         // number of requests that take part in the steps of the engine
	Waiting       int64 `json:"waiting"`         // number of requests that the engine has not started
	CacheTokens   int64 `json:"cacheTokens"`     // size of the KV cache in tokens
	CacheUsed     int64 `json:"cacheUsedTokens"` // tokens of it that running requests use
	// Age is the time since the load was measured.
	Age time.Duration `json:"age,omitempty"`
}

// UnknownLoad is the value of a number in a ModelLoad that the engine does not report.
const UnknownLoad = -1

// NoLoad returns a ModelLoad without any known number.
func NoLoad() ModelLoad {
	return ModelLoad{PendingTokens: UnknownLoad, Running: UnknownLoad, Waiting: UnknownLoad, CacheTokens: UnknownLoad,
		CacheUsed: UnknownLoad}
}

package api

import (
	"context"
	"fmt"

	"anneal/eventlog"
)

// A brokenLog fails reads and writes.
type brokenLog struct{ eventlog.Log }

func (brokenLog) Last(context.Context) (eventlog.Checkpoint, error) {
	return eventlog.Checkpoint{}, fmt.Errorf("no connection")
}

func (brokenLog) Append(context.Context, eventlog.Write) (uint64, error) {
	return 0, fmt.Errorf("no connection")
}

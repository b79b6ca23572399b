package api

import (
	"bytes"
	"context"
	"fmt"
	"sync"

	"anneal/eventlog"
)

// A safeBuffer is a buffer for concurrent writers.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A brokenLog fails reads and writes.
type brokenLog struct{ eventlog.Log }

func (brokenLog) Last(context.Context) (eventlog.Checkpoint, error) {
	return eventlog.Checkpoint{}, fmt.Errorf("no connection")
}

func (brokenLog) Append(context.Context, eventlog.Write) (uint64, error) {
	return 0, fmt.Errorf("no connection")
}

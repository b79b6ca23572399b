package tasks

import (
	"encoding/json"
	"fmt"

	"anneal/eventlog"
)

// factOf is the fact that an event records under a stored name; nil when it
// records something else.
func factOf[F any](e eventlog.Event, stored string) (*F, error) {
	if e.Type != stored {
		return nil, nil
	}
	fact := new(F)
	if err := json.Unmarshal(e.Data, fact); err != nil {
		return nil, fmt.Errorf("event %d: %w", e.Position, err)
	}
	return fact, nil
}

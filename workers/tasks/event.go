package tasks

import (
	"encoding/json"
	"fmt"

	"anneal/eventlog"
)

// eventOf decodes the event e if its stored name is the argument stored, and returns nil otherwise.
func eventOf[E any](e eventlog.Event, stored string) (*E, error) {
	if e.Type != stored {
		return nil, nil
	}
	decoded := new(E)
	if err := json.Unmarshal(e.Data, decoded); err != nil {
		return nil, fmt.Errorf("event %d: %w", e.Position, err)
	}
	return decoded, nil
}

package tasks

import (
	"encoding/json"
	"fmt"

	"anneal/eventlog"
)

// eventOf decodes the data of an event into E if stored is the event's type; otherwise it returns
// nil.
func eventOf[E any](e eventlog.Event, stored string) (*E, error) {
	if e.Type != stored {
		return nil, nil
	}
	decoded := new(E)
	if err := json.Unmarshal(e.Data, decoded); err != nil {
		return nil, fmt.Errorf("decode the event at position %d: %w", e.Position, err)
	}
	return decoded, nil
}

package idempotency

import (
	"encoding/json"
	"time"
)

// maxExecution is the time within which requests of earlier versions, whose records have no
// position, are assumed to have ended.
const maxExecution = 10 * time.Minute

// AsOf returns the record of a key as it has to be in a log that ends at a position, with an event
// of the given time. It removes the response of a request that may have recorded later events,
// which this log does not have. A repetition of the request is then executed again: it has the same
// seed, so it continues after the events that the log has. AsOf does not remove the record itself,
// because without the seed the request would be executed twice.
func AsOf(record []byte, position uint64, last time.Time) ([]byte, error) {
	var c storedClaim
	if err := json.Unmarshal(record, &c); err != nil || c.Answer == nil {
		return record, nil // Claim reports a record that cannot be read
	}
	if c.Position > 0 && c.Position <= position || c.Position == 0 && c.Since.Add(maxExecution).Before(last) {
		return record, nil
	}
	c.Answer, c.Position, c.Lease = nil, 0, c.Since
	return json.Marshal(c)
}

// Package delivery stores what the target of a subscription has received, in one small file for
// each subscription, which is replaced atomically. Each version of the file is complete: every
// event up to its cursor was delivered, or is among its retries or dead letters. So if two
// processes deliver concurrently, or an older version of the file is restored, events are delivered
// again, but none is lost.
package delivery

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"time"

	"anneal/blobs"
	"anneal/domain"
)

// A State records what the target of a subscription has received.
type State struct {
	// Cursor is the last event that was read for delivery. Its position is 0 before the first
	// event.
	Cursor      Cursor   `json:"cursor"`
	Redelivery  int      `json:"redelivery,omitempty"` // number of the newest redelivery that has started; 0: none
	Retries     []Letter `json:"retries,omitempty"`    // events to retry or that wait for these, ordered by position
	DeadLetters []Letter `json:"deadLetters,omitempty"`
	Delivered   int64    `json:"delivered"` // number of successful deliveries, including repeated ones

	LastDelivery time.Time `json:"lastDelivery,omitzero"`
	LastError    string    `json:"lastError,omitempty"` // error of the newest failed attempt to deliver an event
	LastFailure  time.Time `json:"lastFailure,omitzero"`
}

// A Cursor identifies an event of the log by position and ID.
type Cursor struct {
	Position uint64 `json:"position"`
	EventID  string `json:"eventId"`
}

// A Letter is an event that was not delivered yet, because its delivery has failed, or because it
// waits for an earlier event of the same resource whose delivery has failed.
type Letter struct {
	Cursor
	Type     string      `json:"type"`
	Resource domain.Name `json:"resource"`
	Attempts int         `json:"attempts"`       // failed attempts to deliver the event; a redelivery resets it
	Since    time.Time   `json:"since,omitzero"` // time of the first failed attempt; zero before it
	Due      time.Time   `json:"due,omitzero"`   // time before which there is no further attempt; zero means none
	Last     time.Time   `json:"last,omitzero"`  // time of the newest failed attempt
	Error    string      `json:"error,omitempty"`
}

// Load reads the delivery state of a subscription; the zero State when none is stored. createEvent
// is the ID of the event that created the subscription.
func Load(ctx context.Context, store *blobs.Store, subscription domain.Name, createEvent string) (state State,
	err error) {
	key := blobs.DeliveryFile(subscription, createEvent)
	file, err := store.Get(ctx, key)
	if domain.CodeOf(err) == domain.NotFound {
		return State{}, nil
	}
	if err != nil {
		return State{}, err
	}
	defer file.Close()
	data, err := io.ReadAll(file)
	if err != nil {
		return State{}, err
	}
	if err := json.Unmarshal(data, &state); err != nil {
		return State{}, domain.Errorf(domain.DataLoss, "the delivery state %s is not valid JSON: %v", key, err)
	}
	return state, nil
}

// Save stores the delivery state of a subscription. When it returns, the state is durable.
// createEvent is the ID of the event that created the subscription.
func Save(ctx context.Context, store *blobs.Store, subscription domain.Name, createEvent string, state *State) error {
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	_, err = store.Put(ctx, blobs.DeliveryFile(subscription, createEvent), bytes.NewReader(data))
	return err
}

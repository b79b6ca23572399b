package coordinator

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"time"

	"github.com/nats-io/nats.go"

	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/projections/live"
)

// trainingSubject is the prefix of the subjects on which control planes announce what they have
// stored in the journals of training runs. The ID of the sender follows. A lost announcement is not
// sent again: the other control planes then find the change in the journal at the next poll.
const trainingSubject = "training."

// activityInterval is the interval of the messages about the activity of training services.
const activityInterval = 5 * time.Second

// TrainingNews broadcasts to the other control planes of an installation what this one has stored
// in the journals of training runs, and which training services are in use.
type TrainingNews struct {
	Conn    *nats.Conn // connection into the NATS account CONTROL
	ID      string     // ID of this control plane
	Journal *operations.Store
	Live    *live.Status
	Now     func() time.Time // nil means time.Now
	Logger  *slog.Logger
}

// A trainingNews is a message of TrainingNews.
type trainingNews struct {
	Lane   *operations.Lane      `json:"lane,omitempty"`   // a lane with new operations or results
	Seqs   []int64               `json:"seqs,omitempty"`   // their sequence numbers
	Active map[domain.Name]int64 `json:"active,omitempty"` // by job: milliseconds since its last use
}

// Announce announces to the other control planes that this one has stored operations or results in
// a lane.
func (n *TrainingNews) Announce(lane operations.Lane, seqs ...int64) {
	n.publish(trainingNews{Lane: &lane, Seqs: seqs})
}

func (n *TrainingNews) publish(news trainingNews) {
	data, err := json.Marshal(news)
	if err == nil {
		err = n.Conn.Publish(trainingSubject+n.ID, data)
	}
	if err != nil && n.Logger != nil {
		n.Logger.Debug("cannot announce a change of a training service to other control planes", "error", err)
	}
}

// Run applies the messages of other control planes, and publishes the activity that this one has
// recorded, until ctx is done.
func (n *TrainingNews) Run(ctx context.Context) error {
	now := n.Now
	if now == nil {
		now = time.Now
	}
	subscription, err := n.Conn.Subscribe(trainingSubject+"*", func(m *nats.Msg) {
		var news trainingNews
		if m.Subject == trainingSubject+n.ID || json.Unmarshal(m.Data, &news) != nil {
			return
		}
		if news.Lane != nil {
			n.Journal.Notify(*news.Lane, news.Seqs...)
		}
		for job, age := range news.Active {
			if age >= 0 {
				n.Live.ObserveTraining(job, now().Add(-time.Duration(age)*time.Millisecond))
			}
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to the training services of other control planes: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	ticker := time.NewTicker(activityInterval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
		sent := now()
		news := trainingNews{Active: map[domain.Name]int64{}}
		for job, at := range n.Live.TouchedTraining() {
			news.Active[job] = max(0, sent.Sub(at).Milliseconds())
		}
		if len(news.Active) > 0 {
			n.publish(news)
		}
	}
}

package pubsub_test

import (
	"anneal/eventlog/pubsub"
	"anneal/eventlog/servertest"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"
	"github.com/stretchr/testify/require"
)

func TestWatermillSuite(t *testing.T) {
	s := servertest.Start(t)
	pubsub := func(t *testing.T, group string) (message.Publisher, message.Subscriber) {
		p, err := pubsub.NewPublisher(s.Control(), pubsub.Tasks)
		require.NoError(t, err)
		sub, err := pubsub.NewSubscriber(s.Control(), pubsub.SubscriberConfig{
			Topics: pubsub.Tasks, Group: group, AckWait: 10 * time.Second, CloseTimeout: 200 * time.Millisecond,
			NackDelay: func(uint64) time.Duration { return time.Millisecond },
		})
		require.NoError(t, err)
		return p, sub
	}
	features := tests.Features{
		ConsumerGroups:                      true,
		GuaranteedOrder:                     true,
		GuaranteedOrderWithSingleSubscriber: true,
		Persistent:                          true,
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) { return pubsub(t, "all") },
		pubsub)
}

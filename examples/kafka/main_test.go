package main

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/servertest"
)

// TestForward forwards events to a Kafka broker in this process, stops, and continues. Kafka must
// have each event, and those of a resource in one partition and in order.
func TestForward(t *testing.T) {
	const topic, resources, each = "anneal-events", 5, 20
	server := servertest.Start(t)
	broker, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, topic))
	require.NoError(t, err)
	t.Cleanup(broker.Close)
	consumer, err := kgo.NewClient(kgo.SeedBrokers(broker.ListenAddrs()...), kgo.ConsumeTopics(topic))
	require.NoError(t, err)
	t.Cleanup(consumer.Close)

	want, got := map[string][]string{}, map[string][]string{}
	partitions := map[string]int32{}
	for round := range 2 {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		done := make(chan error)
		go func() { done <- forward(ctx, server.Control(), "events.acme.>", broker.ListenAddrs(), topic) }()
		for n := range resources * each {
			name := domain.NewName("acme", "datasets", fmt.Sprintf("d%d", n%resources))
			id := fmt.Sprintf("e%d-%d", round, n)
			last := uint64(0)
			if known := want[string(name)]; len(known) > 0 {
				last = versions[known[len(known)-1]]
			}
			position, err := server.Log().Append(ctx, eventlog.Write{Expect: last, Event: eventlog.Event{ID: id, Name: name,
				Time: time.Now(), Actor: "test", Record: domain.Record{Type: "dataset.updated.v1", Data: []byte(`{}`)}}})
			require.NoError(t, err)
			versions[id] = position
			want[string(name)] = append(want[string(name)], id)
		}
		seen := map[string]bool{}
		for len(seen) < resources*each {
			fetched := consumer.PollFetches(ctx)
			require.NoError(t, fetched.Err())
			fetched.EachRecord(func(r *kgo.Record) {
				key, id := string(r.Key), ""
				for _, h := range r.Headers {
					if h.Key == eventlog.HeaderID {
						id = string(h.Value)
					}
				}
				if at, known := partitions[key]; known {
					require.Equal(t, at, r.Partition, "the partition of %s", key)
				}
				partitions[key] = r.Partition
				if !seen[id] {
					got[key] = append(got[key], id)
				}
				seen[id] = true
			})
		}
		stop()
		require.NoError(t, <-done)
	}
	require.Equal(t, want, got)
}

// versions are the positions of the events, by ID.
var versions = map[string]uint64{}

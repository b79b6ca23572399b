// Kafka forwards the events of an account to a topic of Kafka, with Watermill's Subscriber on the
// log and its Publisher to Kafka. Each event arrives at least once; the events of a resource have
// one key, so they arrive in one partition, in the order of the log. The attributes of an event
// become headers, and ce-id tells repeated events apart.
//
//	anneal events credentials create kafka --file kafka.json
//	go run . --context kafka.json --brokers 127.0.0.1:9092 --topic anneal-events
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/nats-io/nats.go"

	"anneal/eventlog"
	"anneal/eventlog/natsconn"
	"anneal/eventlog/pubsub"
)

func main() {
	file := flag.String("context", "context.json", "`file` of `anneal events credentials create`")
	brokers := flag.String("brokers", "127.0.0.1:9092", "`addresses` of Kafka, separated by commas")
	topic := flag.String("topic", "anneal-events", "`topic` of Kafka, which must exist")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	nc, account, err := connect(*file)
	if err == nil {
		defer nc.Close()
		err = forward(ctx, nc, "events."+account+".>", strings.Split(*brokers, ","), *topic)
	}
	if err != nil {
		log.Fatal(err)
	}
}

// connect connects to NATS with a file of credentials.
func connect(path string) (nc *nats.Conn, account string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, "", err
	}
	var file struct{ Account, NATSURL, NATSUser, NATSPassword string }
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, "", fmt.Errorf("%s: %w", path, err)
	}
	nc, err = natsconn.Connect(file.NATSURL, nats.UserInfo(file.NATSUser, file.NATSPassword), nats.MaxReconnects(-1))
	return nc, file.Account, err
}

// forward sends the events of a filter to a topic until ctx is done. The NATS server keeps the
// position of the group, so the next start continues after the last event that Kafka has
// acknowledged.
func forward(ctx context.Context, nc *nats.Conn, filter string, brokers []string, topic string) error {
	subscriber, err := pubsub.NewSubscriber(nc, pubsub.SubscriberConfig{Topics: pubsub.Events, Group: "kafka-" + topic})
	if err != nil {
		return err
	}
	defer subscriber.Close()
	settings := kafka.DefaultSaramaSyncPublisherConfig()
	settings.Producer.RequiredAcks = sarama.WaitForAll
	publisher, err := kafka.NewPublisher(kafka.PublisherConfig{Brokers: brokers, OverwriteSaramaConfig: settings,
		Marshaler: kafka.NewWithPartitioningMarshaler(resourceOf)}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	defer publisher.Close()
	events, err := subscriber.Subscribe(ctx, filter)
	if err != nil {
		return err
	}
	for event := range events {
		if err := publisher.Publish(topic, event.Copy()); err != nil {
			log.Printf("event %s is sent again later: %v", event.UUID, err)
			event.Nack()
			continue
		}
		event.Ack()
	}
	return nil
}

// resourceOf returns the name of the resource of an event, which is the key of its message.
func resourceOf(_ string, event *message.Message) (string, error) {
	return event.Metadata.Get(eventlog.HeaderSubject), nil
}

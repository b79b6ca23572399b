package pubsub

import "github.com/ThreeDotsLabs/watermill/message"

// MaxReason is maxReason for the tests in package pubsub_test.
const MaxReason = maxReason

// Handle adds a handler of a topic.
func (r *Router) Handle(name string, from Topics, topic string, handler func(*message.Message) error,
	onPoison func(*message.Message, error) error,
) error {
	return r.handle(name, from, topic, handler, onPoison)
}

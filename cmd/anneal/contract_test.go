package main_test

import (
	"bytes"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// checkEvents checks each event that the server has recorded, as NATS and as the API send it, by the
// schema that the server serves for its dataschema.
func (s *plane) checkEvents() {
	s.t.Helper()
	schemas := map[string]*jsonschema.Schema{}
	schemaOf := func(uri string) *jsonschema.Schema {
		path, ok := strings.CutPrefix(uri, "anneal:")
		require.True(s.t, ok, "dataschema %q", uri)
		if schemas[uri] == nil {
			c := jsonschema.NewCompiler()
			c.AssertFormat()
			source, err := jsonschema.UnmarshalJSON(bytes.NewReader(httpGet(s.t, s.context.Address+path)))
			require.NoError(s.t, err)
			require.NoError(s.t, c.AddResource(uri, source))
			schemas[uri], err = c.Compile(uri)
			require.NoError(s.t, err)
		}
		return schemas[uri]
	}
	operator := s.operator()
	shown := s.as(operator.Account, operator.APIKey).list("//v1/events", "events")
	require.NotEmpty(s.t, shown)
	for _, event := range shown {
		data := testutil.Marshal(s.t, event["data"])
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
		require.NoError(s.t, err)
		require.NoError(s.t, schemaOf(event["dataschema"].(string)).Validate(value), "%v", event)
	}

	js, err := jetstream.New(s.reader(operator, nil))
	require.NoError(s.t, err)
	for _, stream := range []string{"EVENTS", "USAGE"} {
		found, err := js.Stream(s.t.Context(), stream)
		require.NoError(s.t, err)
		last := found.CachedInfo().State.LastSeq
		if last == 0 {
			continue
		}
		consumer, err := js.OrderedConsumer(s.t.Context(), stream, jetstream.OrderedConsumerConfig{})
		require.NoError(s.t, err)
		messages, err := consumer.Messages()
		require.NoError(s.t, err)
		defer messages.Stop()
		for position := uint64(0); position < last; {
			m, err := messages.Next(jetstream.NextContext(s.t.Context()))
			require.NoError(s.t, err)
			meta, err := m.Metadata()
			require.NoError(s.t, err)
			position = meta.Sequence.Stream
			value, err := jsonschema.UnmarshalJSON(bytes.NewReader(m.Data()))
			require.NoError(s.t, err)
			header := nats.Header(m.Headers())
			require.NoError(s.t, schemaOf(header.Get("ce-dataschema")).Validate(value), "%v %s", header, m.Data())
		}
	}
}

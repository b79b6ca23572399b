package server

import (
	"context"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog/idempotency"
	"anneal/eventlog/metering"
)

// corpusRecords is the number of usage records, and of responses under idempotency keys, that each
// round of makeCorpus stores.
const corpusRecords = 10

func usageRequest(n int) string { return fmt.Sprintf("request-%d", n) }

// storeRecords stores the usage records and the responses of a round, and waits until the readers'
// mirror has the records.
func storeRecords(ctx context.Context, s *Server, round int) error {
	for n := round * corpusRecords; n < (round+1)*corpusRecords; n++ {
		if err := s.meter.Record(metering.Record{Time: time.Now(), Request: usageRequest(n), Kind: metering.Chat,
			Account: "default", Key: "accounts/default/apiKeys/k", Deployment: "accounts/default/deployments/d",
			Model: "m", Complete: true, PromptTokens: n}); err != nil {
			return err
		}
		claim, err := s.idempotency.Claim(ctx, fmt.Sprintf("default.key-%d", n), []byte("digest"), time.Now(), time.Minute)
		if err == nil {
			err = s.idempotency.Store(ctx, claim, fmt.Appendf(nil, "response %d", n))
		}
		if err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if err := s.meter.Drain(ctx); err != nil {
		return err
	}
	for lackingUsage(ctx, s, (round+1)*corpusRecords) != "" {
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	return nil
}

// awaitUsageMirror waits until the mirror for readers, which a start may have created again, ends where
// the stream ends. A mirror that lacks a record in between ends there, too: lackingUsage finds it.
func awaitUsageMirror(ctx context.Context, mirror, control jetstream.JetStream) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		stream, err := control.Stream(ctx, metering.Stream)
		if err != nil {
			return err
		}
		copied, err := mirror.Stream(ctx, metering.Stream)
		if err == nil && copied.CachedInfo().State.LastSeq >= stream.CachedInfo().State.LastSeq {
			return nil
		}
		if err := sleep(ctx, 10*time.Millisecond); err != nil {
			return fmt.Errorf("the mirror does not reach the end of the stream: %w", err)
		}
	}
}

// lackingUsage returns which of the first n usage records the mirror for readers or, if the mirror
// is complete, the stream lacks; "" when both are complete.
func lackingUsage(ctx context.Context, s *Server, n int) string {
	user, password := s.nats.ReaderCredentials()
	reader, err := nats.Connect(s.nats.URL(), nats.UserInfo(user, password))
	if err != nil {
		return err.Error()
	}
	defer reader.Close()
	mirror, err := jetstream.New(reader)
	if err != nil {
		return err.Error()
	}
	control, err := jetstream.New(s.events.Control())
	if err != nil {
		return err.Error()
	}
	if err := awaitUsageMirror(ctx, mirror, control); err != nil {
		return err.Error()
	}
	for what, js := range map[string]jetstream.JetStream{"mirror": mirror, "stream": control} {
		for i := range n {
			stream, err := js.Stream(ctx, metering.Stream)
			if err != nil {
				return err.Error()
			}
			m, err := stream.GetMsg(ctx, uint64(i+1))
			if err != nil || m.Header.Get("ce-correlation") != usageRequest(i) {
				return fmt.Sprintf("the %s has no usage record of %s: %v", what, usageRequest(i), err)
			}
		}
	}
	return ""
}

// lackingResponses returns which of the first n responses is not replayed.
func lackingResponses(ctx context.Context, s *Server, n int) string {
	for i := range n {
		claim, err := s.idempotency.Claim(ctx, fmt.Sprintf("default.key-%d", i), []byte("digest"), time.Now(), time.Minute)
		if err != nil || claim.State != idempotency.Completed || string(claim.Response) != fmt.Sprintf("response %d", i) {
			return fmt.Sprintf("response %d is not replayed: state %d, %v", i, claim.State, err)
		}
	}
	return ""
}

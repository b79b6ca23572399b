package eventlog

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/assert"

	"anneal/domain"
)

// TestRetryOfUnansweredRequests enumerates the errors after which Retry sends a request again.
func TestRetryOfUnansweredRequests(t *testing.T) {
	failed := errors.New("failed")
	for _, row := range []struct {
		err   error
		again bool
	}{
		{context.DeadlineExceeded, true},
		{nats.ErrTimeout, true},
		{nats.ErrNoResponders, true},
		{jetstream.ErrNoStreamResponse, true},
		{jetstream.ErrJetStreamNotEnabled, true},
		{&jetstream.APIError{ErrorCode: codeUnavailable}, true},
		{&jetstream.APIError{ErrorCode: codeSubjectBusy}, true},
		{domain.Errorf(domain.Unavailable, "the event log does not respond"), true},
		{&jetstream.APIError{ErrorCode: codeWrongSequence}, false},
		{jetstream.ErrStreamNotFound, false},
		{domain.Errorf(domain.FailedPrecondition, "damaged"), false},
		{failed, false},
	} {
		t.Run(row.err.Error(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				attempts := 0
				err := Retry(t.Context(), func(context.Context) error {
					if attempts++; attempts == 1 {
						return fmt.Errorf("look up a stream: %w", row.err)
					}
					return nil
				})
				if row.again {
					assert.NoError(t, err)
					assert.Equal(t, 2, attempts)
					return
				}
				assert.ErrorIs(t, err, row.err)
				assert.Equal(t, 1, attempts)
			})
		})
	}
}

// TestRetriedReadsAreRetried checks that Retry repeats a read of the log that retries on its own,
// when the log responds only after the time of one attempt. A control plane that started while the
// NATS servers elected a leader ended with "the event log does not respond".
func TestRetriedReadsAreRetried(t *testing.T) {
	for seconds := range 9 {
		synctest.Test(t, func(t *testing.T) {
			log, begun := &JetStream{ackWait: defaultAckWait}, time.Now()
			err := Retry(t.Context(), func(ctx context.Context) error {
				return log.retryRead(ctx, func(context.Context) error {
					if time.Since(begun) < time.Duration(seconds)*time.Second {
						return &jetstream.APIError{ErrorCode: codeUnavailable}
					}
					return nil
				})
			})
			assert.NoError(t, err)
		})
	}
}

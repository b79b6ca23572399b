package eventlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Stream is the JetStream stream that holds the log.
const Stream = "EVENTS"

const everything = "events.>"

// MaxEvent is how many bytes one event may have, envelope and body together.
const MaxEvent = 1 << 20

// JetStreamOptions say how the log is kept. Zero values are good.
type JetStreamOptions struct {
	Replicas int           // servers that keep each event: 1, 3 or 5; 0 leaves what is there, or 1
	AckWait  time.Duration // before an acknowledgement counts as lost; 0 is 5 s
}

const defaultAckWait = 5 * time.Second

// A JetStream is a Log on the stream EVENTS of a NATS server or cluster.
type JetStream struct {
	filtered bool // a mirror that may hold some of the events only, at their positions
	nc       *nats.Conn
	js       jetstream.JetStream
	ackWait  time.Duration
	disk     *diskSync           // nil where the servers sync before they acknowledge
	mark     *integrity.MarkFile // nil where nobody keeps one
	space    *disk.Space         // nil where the servers' disks are not ours
	history  history             // what this process has seen of it
}

// OpenJetStream opens the log, and makes its stream when there is none yet.
func OpenJetStream(ctx context.Context, nc *nats.Conn, opts JetStreamOptions) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	config := jetstream.StreamConfig{
		Name:        Stream,
		Description: "What happened: every state change, for ever",
		Subjects:    []string{everything},
		Storage:     jetstream.FileStorage,
		Replicas:    max(1, opts.Replicas),
		MaxMsgSize:  MaxEvent,
		Duplicates:  time.Minute,
		AllowDirect: true,
		DenyDelete:  true,
		DenyPurge:   true,
	}
	if err := EnsureStream(ctx, js, config, opts.Replicas); err != nil {
		return nil, err
	}
	if opts.AckWait <= 0 {
		opts.AckWait = defaultAckWait
	}
	return &JetStream{nc: nc, js: js, ackWait: opts.AckWait}, nil
}

// ensureStream makes a stream or brings it up to date. Zero replicas leave a
// stream that exists with as many as it has.
func EnsureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, replicas int) error {
	return Retry(ctx, func(ctx context.Context) error {
		there, err := js.Stream(ctx, config.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
		case err != nil:
			return fmt.Errorf("eventlog: looking for the stream %s: %w", config.Name, err)
		case replicas == 0:
			config.Replicas = there.CachedInfo().Config.Replicas
		}
		if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
			return fmt.Errorf("eventlog: opening the stream %s with %d replicas: %w", config.Name, config.Replicas, err)
		}
		return nil
	})
}

// persist tries what may be repeated until it is answered: a cluster without a
// leader answers nothing, and the question is lost.
func Retry(ctx context.Context, try func(context.Context) error) error {
	const oneTry = 2 * time.Second
	for {
		once, cancel := context.WithTimeout(ctx, oneTry)
		err := try(once)
		cancel()
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) || errors.Is(err, jetstream.ErrNoStreamResponse) ||
			errors.Is(err, jetstream.ErrJetStreamNotEnabled) || err != nil && notTaken(err)
		if !silent || !Sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// Append implements Log.
func (l *JetStream) Append(ctx context.Context, w Write) (uint64, error) {
	if err := w.check(); err != nil {
		return 0, err
	}
	if err := l.space.Check(disk.Events, 0); err != nil {
		return 0, err
	}
	m := Encode(w.Event)
	m.Header[jetstream.MsgIDHeader] = m.Header[HeaderID]
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(w.Expect, 10)}
	if size := m.Size(); size > MaxEvent {
		return 0, domain.Errorf(domain.InvalidArgument, "an event of %s has %d bytes: at most %d are kept, so shorten the request", w.Name, size, MaxEvent)
	}
	if err := l.history.failure(); err != nil {
		return 0, err
	}
	if err := l.mark.Err(); err != nil {
		return 0, err
	}
	seen := l.history.last().Position
	position, err := l.publish(ctx, m)
	if err != nil {
		return 0, err
	}
	if position <= seen { // the event is a duplicate of itself, or the log was set back
		if err := l.checkHistory(ctx); err != nil {
			return 0, fmt.Errorf("%w: position %d follows position %d: %w", ErrUncertain, position, seen, err)
		}
	}
	l.history.saw(position, w.ID)
	if err := l.disk.wait(ctx, position); err != nil {
		return 0, uncertain(err) // the server has it, and may have it after a restart
	}
	return position, nil
}

// uncertain is ErrUncertain with its cause. The cause is only told: a fault in
// it would be the word that nothing was recorded.
func uncertain(cause error) error { return fmt.Errorf("%w: %v", ErrUncertain, cause) }

// publish sends a message until the server takes or refuses it. It sends
// again only what certainly was not recorded.
func (l *JetStream) publish(parent context.Context, m *nats.Msg) (uint64, error) {
	ctx, cancel := context.WithTimeout(parent, l.ackWait)
	defer cancel()
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		position, err := l.publishOnce(ctx, m)
		if err == nil || !notTaken(err) {
			return position, err
		}
		if !Sleep(ctx, pause) {
			if parent.Err() != nil {
				return 0, parent.Err()
			}
			return 0, domain.Errorf(domain.Unavailable, "the event log took nothing for %v (%v): nothing was recorded, try again", l.ackWait, err)
		}
	}
}

func (l *JetStream) publishOnce(ctx context.Context, m *nats.Msg) (uint64, error) {
	reply, err := l.nc.RequestMsgWithContext(ctx, m)
	switch {
	case err == nil:
		return acknowledged(reply.Data)
	case errors.Is(err, nats.ErrNoResponders):
		return 0, err
	case errors.Is(err, nats.ErrMaxPayload):
		return 0, errTooLarge
	}
	return 0, fmt.Errorf("%w: %w", ErrUncertain, err)
}

// Codes of the server's refusals.
const (
	codeUnavailable   = 10008
	codeNoMessage     = 10037
	codeTooLarge      = 10054
	codeWrongSequence = 10071
	codeSubjectBusy   = 10164 // another write to the subject is not decided yet, or just now
)

var errTooLarge = domain.Errorf(domain.InvalidArgument, "an event is larger than the log takes: shorten the request")

func acknowledged(data []byte) (uint64, error) {
	const usual = `{"stream":"` + Stream + `","seq":` // then digits and a brace: not worth a JSON decoder
	if rest, ok := bytes.CutPrefix(data, []byte(usual)); ok {
		if position, err := strconv.ParseUint(strings.TrimRight(string(rest), "}"), 10, 64); err == nil && position > 0 {
			return position, nil
		}
	}
	var ack struct {
		Sequence uint64              `json:"seq"`
		Error    *jetstream.APIError `json:"error"`
	}
	if err := json.Unmarshal(data, &ack); err != nil || ack.Error == nil && ack.Sequence == 0 {
		return 0, fmt.Errorf("%w: the server's answer cannot be read", ErrUncertain)
	}
	if ack.Error == nil {
		return ack.Sequence, nil
	}
	switch ack.Error.ErrorCode {
	case codeWrongSequence:
		return 0, ErrConflict
	case codeTooLarge:
		return 0, errTooLarge
	case codeUnavailable, codeSubjectBusy:
		return 0, fmt.Errorf("eventlog: the server refused the append: %w", ack.Error)
	}
	// Other errors, such as 10077 (store failed), may follow a complete write.
	return 0, uncertain(ack.Error)
}

// notTaken tells whether an append may be sent again as it is.
func notTaken(err error) bool {
	if errors.Is(err, nats.ErrNoResponders) {
		return true
	}
	var refusal *jetstream.APIError
	if !errors.As(err, &refusal) {
		return false
	}
	switch refusal.ErrorCode {
	case codeUnavailable, codeSubjectBusy:
		return true
	}
	return false
}

// IsSequenceConflict reports whether the server refused a message because another was stored
// on its subject first.
func IsSequenceConflict(err error) bool {
	var refusal *jetstream.APIError
	return errors.As(err, &refusal) && (refusal.ErrorCode == codeWrongSequence || refusal.ErrorCode == codeSubjectBusy)
}

// sleep pauses; false means that ctx was done first.
func Sleep(ctx context.Context, pause time.Duration) bool {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

package eventlog

import (
	"bytes"
	"cmp"
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

// MaxEvent limits the size of an event, envelope and body together, in bytes.
const MaxEvent = 1 << 20

// JetStreamOptions configure the log. Zero values are defaults.
type JetStreamOptions struct {
	Replicas int           // replicas of the stream: 1, 3 or 5; 0 keeps an existing stream's, and is 1 for a new one
	AckWait  time.Duration // how long to wait for an acknowledgement; 0 is 5 s
}

const defaultAckWait = 5 * time.Second

// A JetStream is a Log on the stream EVENTS of a NATS server or cluster.
type JetStream struct {
	// Measure is called with the time that each Append took and its error; nil calls nothing. Set it
	// before Append.
	Measure func(time.Duration, error)

	filtered bool // a mirror that may hold a subset of the events, at their positions
	nc       *nats.Conn
	js       jetstream.JetStream
	ackWait  time.Duration
	disk     *diskSync           // nil where the servers sync before they acknowledge
	mark     *integrity.MarkFile // nil when this process keeps no high-water mark
	space    *disk.Space         // nil for servers of a cluster
	history  history             // the newest event that this process has seen

	replicated bool // tests take the stream for a replicated one

	controlPlane string                      // see DecideAs
	readable     func(eventType string) bool // see RequireReadable; nil permits all types
	observe      func(integrity.Message)     // see Observe; nil calls nothing
}

// OpenJetStream opens the log and creates its stream if it does not exist.
func OpenJetStream(ctx context.Context, nc *nats.Conn, opts JetStreamOptions) (*JetStream, error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return nil, fmt.Errorf("eventlog: %w", err)
	}
	config := jetstream.StreamConfig{
		Name:        Stream,
		Description: "The event log: every state change, kept forever",
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

// EnsureStream creates or updates a stream with a configuration. With replicas 0 an existing stream
// keeps its number of replicas instead of config.Replicas.
func EnsureStream(ctx context.Context, js jetstream.JetStream, config jetstream.StreamConfig, replicas int) error {
	return Retry(ctx, func(ctx context.Context) error {
		there, err := js.Stream(ctx, config.Name)
		switch {
		case errors.Is(err, jetstream.ErrStreamNotFound):
		case err != nil:
			return fmt.Errorf("look up stream %s: %w", config.Name, err)
		case replicas == 0:
			config.Replicas = there.CachedInfo().Config.Replicas
		}
		if _, err := js.CreateOrUpdateStream(ctx, config); err != nil {
			return fmt.Errorf("open stream %s with %d replicas: %w", config.Name, config.Replicas, err)
		}
		return nil
	})
}

// Retry repeats an idempotent request, because a cluster without a leader drops requests. It
// returns when the server replies or ctx is done.
func Retry(ctx context.Context, try func(context.Context) error) error {
	const perAttempt = 2 * time.Second
	for {
		once, cancel := context.WithTimeout(ctx, perAttempt)
		err := try(once)
		cancel()
		silent := errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
			errors.Is(err, jetstream.ErrNoStreamResponse) ||
			errors.Is(err, jetstream.ErrJetStreamNotEnabled) || err != nil && notTaken(err)
		if !silent || !Sleep(ctx, 100*time.Millisecond) {
			return err
		}
	}
}

// DecideAs sets the control plane in the envelopes of the events that are appended. Call it before
// Append.
func (l *JetStream) DecideAs(controlPlane string) { l.controlPlane = controlPlane }

// RequireReadable makes Append refuse the types of events for which readable returns false, because a
// control plane of the installation cannot read them. Call it before Append.
func (l *JetStream) RequireReadable(readable func(eventType string) bool) { l.readable = readable }

// Append implements Log.
func (l *JetStream) Append(ctx context.Context, w Write) (uint64, error) {
	begun := time.Now()
	position, err := l.append(ctx, w)
	if l.Measure != nil {
		l.Measure(time.Since(begun), err)
	}
	return position, err
}

func (l *JetStream) append(ctx context.Context, w Write) (uint64, error) {
	w.ControlPlane = cmp.Or(w.ControlPlane, l.controlPlane)
	if err := w.check(); err != nil {
		return 0, err
	}
	if l.readable != nil && !l.readable(w.Type) {
		return 0, &domain.Error{Code: domain.Unavailable, Reason: "UPGRADE_IN_PROGRESS",
			Message: "a control plane of this installation runs an older version of anneal, which cannot read events of type " +
				w.Type + ": try again when all control planes are upgraded"}
	}
	if err := l.space.Check(disk.Events, 0); err != nil {
		return 0, err
	}
	m := Encode(w.Event)
	m.Header[jetstream.MsgIDHeader] = m.Header[HeaderID]
	m.Header[jetstream.ExpectedLastSubjSeqHeader] = []string{strconv.FormatUint(w.Expect, 10)}
	if size := m.Size(); size > MaxEvent {
		return 0, domain.Errorf(domain.InvalidArgument,
			"event of %s has %d bytes, more than the limit of %d: shorten the request", w.Name, size, MaxEvent)
	}
	if err := l.history.failure(); err != nil {
		return 0, err
	}
	if err := l.mark.Err(); err != nil {
		return 0, err
	}
	seen := l.history.last().Position
	position, err := l.disk.publish(func() (uint64, error) { return l.publish(ctx, m) })
	if err != nil {
		return 0, err
	}
	if position <= seen { // a duplicate of this event, or the log was set back
		if err := l.checkHistory(ctx); err != nil {
			return 0, fmt.Errorf("%w: the server returned position %d after position %d: %w", ErrUncertain, position, seen, err)
		}
	}
	l.history.saw(position, w.ID)
	if err := l.disk.wait(ctx, position); err != nil {
		return 0, uncertain(err) // the server has written the event, and may still have it after a restart
	}
	return position, nil
}

// uncertain returns ErrUncertain with the text of cause. It does not wrap cause, because a
// *domain.Error in the chain would mean that nothing was recorded.
func uncertain(cause error) error { return fmt.Errorf("%w: %v", ErrUncertain, cause) }

// publish sends a message until the server accepts or refuses it, and returns its position. It
// resends the message only after an error that means that the message was not recorded.
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
			return 0, domain.Errorf(domain.Unavailable,
				"event log unavailable for %v (%v): nothing was recorded, try again", l.ackWait, err)
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

// Error codes of the JetStream API.
const (
	codeUnavailable   = 10008
	codeNoMessage     = 10037
	codeTooLarge      = 10054
	codeWrongSequence = 10071
	codeSubjectBusy   = 10164 // another write to the subject is being processed
)

var errTooLarge = domain.Errorf(domain.InvalidArgument,
	"event exceeds the maximum message size of the log: shorten the request")

func acknowledged(data []byte) (uint64, error) {
	// A usual reply is this text, the position and a brace, and need not be decoded as JSON.
	const usual = `{"stream":"` + Stream + `","seq":`
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
		return 0, fmt.Errorf("%w: the server's reply cannot be parsed", ErrUncertain)
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
		return 0, fmt.Errorf("append refused by the server: %w", ack.Error)
	}
	// Other errors, such as 10077 (store failed), may follow a complete write.
	return 0, uncertain(ack.Error)
}

// notTaken reports whether an error means that the server certainly did not store the message, so
// that it may be sent again.
func notTaken(err error) bool {
	if errors.Is(err, nats.ErrNoResponders) {
		return true
	}
	var apiErr *jetstream.APIError
	if !errors.As(err, &apiErr) {
		return false
	}
	switch apiErr.ErrorCode {
	case codeUnavailable, codeSubjectBusy:
		return true
	}
	return false
}

// IsSequenceConflict reports whether the server refused a message because another was stored
// on its subject first.
func IsSequenceConflict(err error) bool {
	var apiErr *jetstream.APIError
	return errors.As(err, &apiErr) && (apiErr.ErrorCode == codeWrongSequence || apiErr.ErrorCode == codeSubjectBusy)
}

// Sleep waits for a duration. It returns false immediately when ctx is done first.
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

package eventlog

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
)

// Stream is the name of the JetStream stream that holds the log.
const Stream = "EVENTS"

const everything = "events.>"

// MaxEvent is the maximum size in bytes of an event, envelope and data together.
const MaxEvent = 1 << 20

// JetStreamOptions configure the log. A zero field means the default.
type JetStreamOptions struct {
	// replicas of the stream: 1, 3 or 5; 0 keeps those of an existing stream, and means 1 for a new
	// one
	Replicas int
	AckWait  time.Duration // how long Append waits for the server's acknowledgement; 0 means 5 s
}

const defaultAckWait = 5 * time.Second

// A JetStream is a Log on the stream EVENTS of a NATS server or cluster.
type JetStream struct {
	// Measure is called after each Append with its duration and error; nil disables it. It must be set
	// before the first Append.
	Measure func(time.Duration, error)

	filtered bool // the stream is a mirror that has only some of the log's events, at their positions in the log
	nc       *nats.Conn
	js       jetstream.JetStream
	ackWait  time.Duration
	// syncs acknowledged events to disk; nil in a cluster, whose servers sync before they acknowledge
	disk    *diskSync
	mark    *integrity.MarkFile // high-water mark of the log; nil when this process keeps none
	space   *disk.Space         // free space of the embedded server's disk; nil in a cluster
	history history             // newest event that this process has seen, to detect that the log was set back

	pageSize pageSize // of the next page that Read requests

	replicated bool // tests set it to make the log treat its stream as replicated

	controlPlane string // ID of this control plane; see DecideAs
	// whether all control planes can read a type of event; see RequireReadable; nil means that they
	// can read all
	readable func(eventType string) bool
	observe  func(integrity.Message) // called for each event that Follow yields; see Observe; nil disables it
}

// OpenJetStream opens the log. It creates the log's stream if it does not exist.
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

// EnsureStream creates a stream or updates its configuration. With replicas 0, an existing stream
// keeps its number of replicas, and a new stream gets config.Replicas.
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

// Retry repeats an idempotent request to the NATS server until it replies or ctx is done. A cluster
// without a leader drops requests, so a single attempt could wait forever. Retry logs a warning
// every retryWarning.
func Retry(ctx context.Context, try func(context.Context) error) error {
	warned := time.Now()
	for {
		once, cancel := context.WithTimeout(ctx, retryAttempt)
		err := try(once)
		cancel()
		if !unanswered(err) || !Sleep(ctx, retryPause) {
			return err
		}
		if time.Since(warned) >= retryWarning {
			warned = time.Now()
			slog.Warn("the NATS cluster does not respond: trying again", "error", err)
		}
	}
}

const (
	retryAttempt = 2 * time.Second        // maximum duration of one attempt
	retryPause   = 100 * time.Millisecond // pause between two attempts
	retryWarning = 5 * time.Second        // time between two warnings
)

// unanswered reports whether err means that the NATS cluster did not reply to a request, or could
// not process it yet.
func unanswered(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, nats.ErrTimeout) ||
		errors.Is(err, jetstream.ErrNoStreamResponse) || errors.Is(err, jetstream.ErrJetStreamNotEnabled) ||
		notTaken(err) || domain.CodeOf(err) == domain.Unavailable
}

// DecideAs sets the ID of the control plane that the envelopes of appended events name. It must be
// called before the first Append.
func (l *JetStream) DecideAs(controlPlane string) { l.controlPlane = controlPlane }

// RequireReadable makes Append refuse the types of events for which readable returns false: those
// that a control plane of the installation with an older version cannot read. It must be called
// before the first Append.
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
			"the event of %s has %d bytes: at most %d are allowed; shorten the request", w.Name, size, MaxEvent)
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
	if position <= seen { // the event is a duplicate, or the log was set back
		if err := l.checkHistory(ctx); err != nil {
			return 0, fmt.Errorf("%w: the server returned position %d after position %d: %w", ErrUncertain, position, seen, err)
		}
	}
	l.history.saw(position, w.ID)
	if w.Stored != nil {
		w.Stored(position)
	}
	if err := l.disk.wait(ctx, position); err != nil {
		return 0, uncertain(err) // the server has stored the event, and may still have it after a restart
	}
	return position, nil
}

// uncertain returns an ErrUncertain with the text of cause. It does not wrap cause, because callers
// take a *domain.Error in the chain as proof that nothing was recorded.
func uncertain(cause error) error { return fmt.Errorf("%w: %v", ErrUncertain, cause) }

// publish sends a message to the log's stream until the server accepts or refuses it, and returns
// the message's position. It sends the message again only after errors which mean that the message
// was not stored.
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
				"the event log did not respond for %v (%v): nothing was recorded, try again", l.ackWait, err)
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
	codeSubjectBusy   = 10164 // another message for the subject is being processed
)

var errTooLarge = domain.Errorf(domain.InvalidArgument,
	"the event exceeds the maximum message size of the NATS server: shorten the request, or raise max_payload")

func acknowledged(data []byte) (uint64, error) {
	// The usual reply is this text, the position and a brace. It is parsed without decoding JSON.
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
		return 0, fmt.Errorf("%w: the NATS server's reply to the append cannot be parsed", ErrUncertain)
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
		return 0, fmt.Errorf("the NATS server refused the event: %w", ack.Error)
	}
	// Other errors, such as 10077 (store failed), may follow a complete write.
	return 0, uncertain(ack.Error)
}

// notTaken reports whether err means that the server did not store the message, so that it can be
// sent again.
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

// IsSequenceConflict reports whether the server refused a message because the last message on the
// subject is not the expected one.
func IsSequenceConflict(err error) bool {
	var apiErr *jetstream.APIError
	return errors.As(err, &apiErr) && (apiErr.ErrorCode == codeWrongSequence || apiErr.ErrorCode == codeSubjectBusy)
}

// Sleep waits for pause and returns true. It returns false as soon as ctx is done.
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

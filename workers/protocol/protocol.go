// Package protocol defines the messages between agents, the coordinator and the gateway over
// NATS. Every message is JSON and names the version of the protocol.
//
//	agents.<node>.beat         node → coordinator: Heartbeat; the reply is Assignments
//	agents.<node>.report       node → coordinator: Report; the reply is ReportReply
//	agents.<node>.sign         node → coordinator: SignRequest; the reply is SignReply
//	agents.<node>.stream.<id>  node → gateway: StreamMessage of a response
//	agents.<node>.gang.<id>.<rank>  node → node: sealed frames of an attempt on several nodes
//	work.<node>.nudge          coordinator → node: send a heartbeat now; no content
//	work.<node>.complete       gateway → node: Completion; the response is a stream
//	work.<node>.embed          gateway → node: EmbeddingRequest; the response is a stream
//	work.<node>.transcribe     gateway → node: Transcription; the response is a stream
//	work.<node>.hear           gateway → node: StreamAck
package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain"
)

// Version is the version of the protocol. The fields version and refused never change their
// meaning, so that agents and coordinators of any two versions can detect that they are
// incompatible.
const Version = 1

// MaxMessage is the maximum size of a message in bytes; the limit of NATS is higher.
const MaxMessage = 768 << 10

// Subjects of the messages of a node. With "*" as the node, a subject matches the subjects of all
// nodes.

func HeartbeatSubject(node string) string  { return "agents." + node + ".beat" }
func ReportSubject(node string) string     { return "agents." + node + ".report" }
func SignSubject(node string) string       { return "agents." + node + ".sign" }
func StreamSubject(node, id string) string { return "agents." + node + ".stream." + id }
func WakeSubject(node string) string       { return "work." + node + ".nudge" }
func CompleteSubject(node string) string   { return "work." + node + ".complete" }
func EmbedSubject(node string) string      { return "work." + node + ".embed" }
func TranscribeSubject(node string) string { return "work." + node + ".transcribe" }
func AckSubject(node string) string        { return "work." + node + ".hear" }

// An Error is a domain.Error in a message.
type Error struct {
	Code    domain.Code `json:"code"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message"`

	Violations []domain.Violation `json:"violations,omitempty"`
}

// ErrorOf returns err as an Error; nil for nil. An err that wraps no domain.Error gets the code
// Unknown.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	e := &Error{Code: domain.CodeOf(err), Message: err.Error()}
	var failure *domain.Error
	if errors.As(err, &failure) {
		e.Reason, e.Violations = failure.Reason, failure.Violations
	}
	return e
}

// Err returns e as a domain.Error; nil for nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	return &domain.Error{Code: e.Code, Reason: e.Reason, Message: domain.Printable(e.Message), Violations: e.Violations}
}

// TooLarge is the reason of the error for a message above MaxMessage.
const TooLarge = "MESSAGE_TOO_LARGE"

// Marshal encodes a message. It returns an error with the reason TooLarge when the message exceeds
// MaxMessage.
func Marshal(message any) ([]byte, error) {
	data, err := json.Marshal(message)
	if err == nil && len(data) > MaxMessage {
		err = &domain.Error{Code: domain.ResourceExhausted, Reason: TooLarge,
			Message: fmt.Sprintf("message of %d bytes exceeds the limit of %d bytes", len(data), MaxMessage)}
	}
	return data, err
}

// Unmarshal decodes a message. It returns an error for a message of another version before it
// decodes any other field. If the message is an ErrorReply, Unmarshal returns the error in it.
func Unmarshal(data []byte, message any) error {
	if !isPlain(data) {
		if err := checkHead(data); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(data, message); err != nil {
		return domain.Errorf(domain.InvalidArgument, "decode message: %v", err)
	}
	return nil
}

// isPlain reports whether a message is certainly of this version and no ErrorReply, as nearly all are, so
// that it need not be decoded twice.
func isPlain(data []byte) bool {
	return bytes.HasPrefix(data, plainHead) && !bytes.Contains(data, []byte(`"refused"`))
}

// plainHead is how Marshal begins every message: Version is its first field.
var plainHead = fmt.Appendf(nil, `{"version":%d,`, Version)

// checkHead returns the error in an ErrorReply, and an error for a message of another version.
func checkHead(data []byte) error {
	var head struct {
		Version int    `json:"version"`
		Refused *Error `json:"refused"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return domain.Errorf(domain.InvalidArgument, "decode message: not valid JSON")
	}
	if head.Refused != nil {
		return head.Refused.Err()
	}
	if head.Version != Version {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "WIRE_VERSION", Message: fmt.Sprintf(
			"message has protocol version %d, but this program supports version %d: "+
				"run the same release of anneal on all machines", head.Version, Version)}
	}
	return nil
}

// An ErrorReply is the reply to a request that is refused. Every version of the protocol can decode
// it.
type ErrorReply struct {
	Version int    `json:"version"`
	Refused *Error `json:"refused"`
}

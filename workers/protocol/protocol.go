// Package protocol defines the messages between agents, the coordinator and the gateway over
// NATS. Every message is JSON and names the version of the protocol.
//
//	agents.<node>.beat         node → coordinator: Heartbeat; the reply is Assignments
//	agents.<node>.report       node → coordinator: Report; the reply is ReportReply
//	agents.<node>.sign         node → coordinator: SignRequest; the reply is SignReply
//	agents.<node>.training.…   node → coordinator: see TrainingSubject
//	agents.<node>.stream.<id>  node → gateway: StreamMessage of a response
//	agents.<node>.gang.<id>.<rank>  node → node: encrypted frames of an attempt on several nodes
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

// Version is the version of the protocol. The meaning of the JSON fields version and refused never
// changes, so that agents and coordinators of any two versions can notice that they are
// incompatible.
const Version = 1

// MaxMessage is the maximum length of an encoded message in bytes. It is lower than the limit of
// NATS.
const MaxMessage = 768 << 10

// Subjects of the messages of a node. With "*" as the node's ID, they match the messages of all
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

// An Error is the form of a domain.Error in a message.
type Error struct {
	Code    domain.Code `json:"code"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message"`

	Violations []domain.Violation `json:"violations,omitempty"`
}

// ErrorOf converts err to an Error for a message. An err that wraps no domain.Error gets the code
// Unknown. ErrorOf(nil) is nil.
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

// Err returns e as a domain.Error. It returns nil when e is nil.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	return &domain.Error{Code: e.Code, Reason: e.Reason, Message: domain.Printable(e.Message), Violations: e.Violations}
}

// TooLarge is the reason of the error for a message that is longer than MaxMessage.
const TooLarge = "MESSAGE_TOO_LARGE"

// Marshal encodes a message as JSON. It compresses a Heartbeat and Assignments that are longer than
// MaxMessage, because the lists of a thousand addons for each replica compress to a tenth. It returns
// an error with the reason TooLarge when the result is longer than MaxMessage.
func Marshal(message any) ([]byte, error) {
	data, err := json.Marshal(message)
	if err == nil && len(data) > MaxMessage && len(data) <= maxPlain && compresses(message) {
		data = compress(data)
	}
	if err == nil && len(data) > MaxMessage {
		err = &domain.Error{Code: domain.ResourceExhausted, Reason: TooLarge,
			Message: fmt.Sprintf("the message between agent and control plane has %d bytes: at most %d are "+
				"allowed", len(data), MaxMessage)}
	}
	return data, err
}

// Unmarshal decodes data into message. When data has another protocol version, it returns an error
// without decoding anything else. When data is an ErrorReply, it returns the error in it.
func Unmarshal(data []byte, message any) error {
	if bytes.HasPrefix(data, compressedHead) && compresses(message) {
		var err error
		if data, err = decompress(data); err != nil {
			return domain.Errorf(domain.InvalidArgument, "decompress a message between agent and control plane: %v", err)
		}
	}
	if !isPlain(data) {
		if err := checkHead(data); err != nil {
			return err
		}
	}
	if err := json.Unmarshal(data, message); err != nil {
		return domain.Errorf(domain.InvalidArgument, "decode a message between agent and control plane: %v", err)
	}
	return nil
}

// isPlain reports whether data certainly has the protocol version Version and is not an ErrorReply.
// Nearly all messages are plain, so they are decoded only once.
func isPlain(data []byte) bool {
	return bytes.HasPrefix(data, plainHead) && !bytes.Contains(data, []byte(`"refused"`))
}

// plainHead is the beginning of every message that Marshal encodes, because Version is the first
// field.
var plainHead = fmt.Appendf(nil, `{"version":%d,`, Version)

// checkHead returns the error in data if data is an ErrorReply, and an error if data has another
// protocol version.
func checkHead(data []byte) error {
	var head struct {
		Version int    `json:"version"`
		Refused *Error `json:"refused"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return domain.Errorf(domain.InvalidArgument, "decode a message between agent and control plane: not valid JSON")
	}
	if head.Refused != nil {
		return head.Refused.Err()
	}
	if head.Version != Version {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "WIRE_VERSION", Message: fmt.Sprintf(
			"the message has protocol version %d, but this program supports version %d: "+
				"run the same release of anneal on all machines", head.Version, Version)}
	}
	return nil
}

// An ErrorReply is the reply that refuses a request. Every version of the protocol can decode it.
type ErrorReply struct {
	Version int    `json:"version"`
	Refused *Error `json:"refused"`
}

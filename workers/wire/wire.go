// Package wire is what agents, the desk and the gateway say to one another
// over NATS. Every message is JSON and names the version it is written in.
//
//	agents.<node>.beat         node → desk: Beat, answered by Orders
//	agents.<node>.report       node → desk: Report, answered by Receipt
//	agents.<node>.sign         node → desk: SignRequest, answered by SignReply
//	agents.<node>.stream.<id>  node → gateway: Part of an answer
//	work.<node>.nudge          desk → node: beat now; no content
//	work.<node>.complete       gateway → node: Completion, answered by its stream
//	work.<node>.transcribe     gateway → node: Transcription, answered by its stream
//	work.<node>.hear           gateway → node: Heard, what of a stream has arrived
package wire

import (
	"encoding/json"
	"errors"
	"fmt"

	"anneal/domain"
)

// Version is the one that this package speaks. The fields version and refused
// keep their meaning for ever, so that any two versions can tell each other
// that they do not fit.
const Version = 1

// MaxMessage bounds every message in bytes; NATS is set to carry more.
const MaxMessage = 768 << 10

// Subjects of a node, for "*" of every node.
func BeatSubject(node string) string       { return "agents." + node + ".beat" }
func ReportSubject(node string) string     { return "agents." + node + ".report" }
func SignSubject(node string) string       { return "agents." + node + ".sign" }
func StreamSubject(node, id string) string { return "agents." + node + ".stream." + id }
func NudgeSubject(node string) string      { return "work." + node + ".nudge" }
func CompleteSubject(node string) string   { return "work." + node + ".complete" }
func TranscribeSubject(node string) string { return "work." + node + ".transcribe" }
func HearSubject(node string) string       { return "work." + node + ".hear" }

// A Fault is a domain.Fault on its way.
type Fault struct {
	Code    domain.Code `json:"code"`
	Reason  string      `json:"reason,omitempty"`
	Message string      `json:"message"`

	Violations []domain.Violation `json:"violations,omitempty"`
}

// FaultOf is err for the wire; nil for nil. What is no fault becomes Unknown.
func FaultOf(err error) *Fault {
	if err == nil {
		return nil
	}
	f := &Fault{Code: domain.CodeOf(err), Message: err.Error()}
	var fault *domain.Error
	if errors.As(err, &fault) {
		f.Reason, f.Violations = fault.Reason, fault.Violations
	}
	return f
}

// Err is the fault as an error; nil for none.
func (f *Fault) Err() error {
	if f == nil {
		return nil
	}
	return &domain.Error{Code: f.Code, Reason: f.Reason, Message: domain.Printable(f.Message), Violations: f.Violations}
}

// TooLarge is the reason of the fault of a message above MaxMessage.
const TooLarge = "MESSAGE_TOO_LARGE"

// Marshal writes a message; one above MaxMessage is an error.
func Marshal(message any) ([]byte, error) {
	data, err := json.Marshal(message)
	if err == nil && len(data) > MaxMessage {
		err = &domain.Error{Code: domain.ResourceExhausted, Reason: TooLarge,
			Message: fmt.Sprintf("a message between nodes would have %d bytes: at most %d are allowed", len(data), MaxMessage)}
	}
	return data, err
}

// Unmarshal reads a message. It refuses another version before anything else.
func Unmarshal(data []byte, message any) error {
	var head struct {
		Version int    `json:"version"`
		Refused *Fault `json:"refused"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return domain.Errorf(domain.InvalidArgument, "a message between nodes cannot be read: it is not JSON")
	}
	if head.Refused != nil {
		return head.Refused.Err()
	}
	if head.Version != Version {
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "WIRE_VERSION", Message: fmt.Sprintf(
			"the message is of version %d, and this side speaks version %d: run the same release of anneal on all machines", head.Version, Version)}
	}
	if err := json.Unmarshal(data, message); err != nil {
		return domain.Errorf(domain.InvalidArgument, "a message between nodes cannot be read: %v", err)
	}
	return nil
}

// Refusal is the answer to what cannot be served at all, in any version.
type Refusal struct {
	Version int    `json:"version"`
	Refused *Fault `json:"refused"`
}

package operations

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"anneal/domain"
)

// The first line of each file names its format and version. The second line is a header in JSON,
// and the rest is the body.
const (
	operationMagic = "anneal operation 1\n"
	resultMagic    = "anneal operation result 1\n"
	laneMagic      = "anneal operation lane 1\n"
)

// maxHeader is the maximum number of bytes of the first two lines of a file.
const maxHeader = 256 << 10

// maxErrorText is the maximum length in bytes of each text in the error of a result.
const maxErrorText = 4 << 10

// A header describes an operation, or a result and its operation.
type header struct {
	Seq     int64         `json:"seq,omitempty"`
	Kind    string        `json:"kind,omitempty"` // of the operation
	Note    string        `json:"note,omitempty"` // of the operation
	Hash    string        `json:"hash,omitempty"` // Hash of the operation, in hexadecimal
	Time    time.Time     `json:"time"`
	Sum     string        `json:"sum"` // SHA-256 of the body
	Attempt int           `json:"attempt,omitempty"`
	Err     *domain.Error `json:"error,omitempty"`
}

// A laneState is the state of the journal of a run.
type laneState struct {
	Through int64 `json:"through"` // the operations up to this one were executed and may be deleted
}

var errDamaged = &domain.Error{Code: domain.DataLoss, Reason: ReasonOperationLost,
	Message: "a stored operation, or its result, is damaged"}

func hexOf(sum [32]byte) string { return hex.EncodeToString(sum[:]) }

func join(magic string, head any, body []byte) []byte {
	text, err := json.Marshal(head)
	if err != nil {
		panic(err) // headers have only texts, numbers and times
	}
	data := make([]byte, 0, len(magic)+len(text)+1+len(body))
	data = append(data, magic...)
	data = append(data, text...)
	data = append(data, '\n')
	return append(data, body...)
}

// split returns the header and the body of a file. It does not verify the checksum of the body.
func split(data []byte, magic string) (h header, body []byte, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(magic))
	text, body, found := bytes.Cut(rest, []byte("\n"))
	if !ok || !found || json.Unmarshal(text, &h) != nil {
		return header{}, nil, errDamaged
	}
	return h, body, nil
}

// verified is like split for a whole file, and returns DataLoss if the checksum of the body is
// wrong.
func verified(data []byte, magic string) (header, []byte, error) {
	h, body, err := split(data, magic)
	if err == nil && h.Sum != hexOf(sha256.Sum256(body)) {
		err = errDamaged
	}
	return h, body, err
}

func encodeOperation(o Operation) []byte {
	return join(operationMagic, header{Seq: o.Seq, Kind: o.Kind, Note: o.Note, Hash: hexOf(o.Hash), Time: o.Time,
		Sum: hexOf(sha256.Sum256(o.Body))}, o.Body)
}

func decodeOperation(data []byte, seq int64) (Operation, error) {
	h, body, err := verified(data, operationMagic)
	o := Operation{Seq: h.Seq, Kind: h.Kind, Note: h.Note, Body: body, Time: h.Time}
	if n, _ := hex.Decode(o.Hash[:], []byte(h.Hash[:min(len(h.Hash), 2*len(o.Hash))])); err == nil &&
		(n != len(o.Hash) || h.Seq != seq) {
		err = errDamaged
	}
	if err != nil {
		return Operation{}, err
	}
	return o, nil
}

// encodeResult returns the content of the file of a result. h is the header of its operation.
func encodeResult(r Result, h header) []byte {
	return join(resultMagic, header{Seq: h.Seq, Kind: h.Kind, Note: h.Note, Hash: h.Hash, Time: r.Time,
		Attempt: r.Attempt, Err: shortened(r.Err), Sum: hexOf(sha256.Sum256(r.Body))}, r.Body)
}

// shortened returns an error whose texts and violations fit into a header.
func shortened(e *domain.Error) *domain.Error {
	if e == nil {
		return nil
	}
	short := &domain.Error{Code: e.Code, Reason: cut(e.Reason), Message: cut(e.Message)}
	for i := range min(len(e.Violations), 4) {
		v := e.Violations[i]
		short.Violations = append(short.Violations, domain.Violation{Field: cut(v.Field), Description: cut(v.Description)})
	}
	return short
}

func cut(text string) string {
	if len(text) > maxErrorText/4 {
		return text[:maxErrorText/4] + "…"
	}
	return text
}

func decodeResult(data []byte) (Result, error) {
	h, body, err := verified(data, resultMagic)
	if err != nil {
		return Result{}, err
	}
	return Result{Attempt: h.Attempt, Body: body, Err: h.Err, Time: h.Time, Kind: h.Kind, Note: h.Note}, nil
}

func encodeLane(state laneState) []byte { return join(laneMagic, state, nil) }

func decodeLane(data []byte) (state laneState, err error) {
	rest, ok := bytes.CutPrefix(data, []byte(laneMagic))
	if !ok || json.Unmarshal(rest, &state) != nil {
		return laneState{}, errDamaged
	}
	return state, nil
}

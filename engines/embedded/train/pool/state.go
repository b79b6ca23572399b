package pool

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash"
	"io"
	"math"

	"anneal/domain"
	"anneal/engines"
)

// A state begins with stateMagic, the length of the header as uint32, and the header as JSON. The
// parameters, both moments and, if there is one, the accumulated gradient follow as float32, and then
// the SHA-256 of everything before. Numbers are little-endian.
const (
	stateMagic     = "anneal-run\n"
	stateVersion   = 1
	maxHeaderBytes = 1 << 16
)

// A header has the fields of a state that are not vectors.
type header struct {
	Version     int                    `json:"version"`
	Base        string                 `json:"base"` // hash of the base model's weights
	Config      engines.TrainRunConfig `json:"config"`
	Steps       int                    `json:"steps"`
	Parameters  int                    `json:"parameters"`
	Accumulated bool                   `json:"accumulated,omitempty"` // the state has a gradient
	Diverged    bool                   `json:"diverged,omitempty"`
}

// Save implements engines.TrainRun.
func (r *run) Save(ctx context.Context, to io.Writer) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	head, err := json.Marshal(header{stateVersion, r.pool.hash, r.config, r.optimizer.Steps, len(r.adapter.Flat()),
		r.accumulated, r.diverged})
	if err != nil {
		return err
	}
	sum := sha256.New()
	out := io.MultiWriter(to, sum)
	start := binary.LittleEndian.AppendUint32([]byte(stateMagic), uint32(len(head)))
	if _, err := out.Write(append(start, head...)); err != nil {
		return err
	}
	for _, v := range r.vectors(r.accumulated) {
		if err := writeFloats(out, v); err != nil {
			return err
		}
	}
	_, err = to.Write(sum.Sum(nil))
	return err
}

// vectors returns the vectors of a state.
func (r *run) vectors(gradient bool) [][]float32 {
	out := [][]float32{r.adapter.Flat(), r.optimizer.Mean, r.optimizer.Variance}
	if gradient {
		out = append(out, r.gradient.Flat)
	}
	return out
}

// RestoreRun implements engines.TrainPool.
func (p *Pool) RestoreRun(ctx context.Context, state io.Reader, resetOptimizer bool) (engines.TrainRun, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sum := sha256.New()
	in := io.TeeReader(state, sum)
	head, err := readHeader(in)
	if err != nil {
		return nil, err
	}
	if head.Base != p.hash {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"the run was trained on the base model %s, but this one is %s: restore it on its base model", head.Base, p.hash)
	}
	r, err := p.newRun(head.Config)
	if err != nil {
		return nil, damaged("configuration: %v", err)
	}
	if n := len(r.adapter.Flat()); n != head.Parameters || head.Steps < 0 {
		return nil, damaged("the adapter has %d parameters instead of %d, and %d steps", head.Parameters, n, head.Steps)
	}
	for _, v := range r.vectors(head.Accumulated) {
		if err := readFloats(in, v); err != nil {
			return nil, damaged("read parameters: %v", err)
		}
	}
	if err := checkSum(state, sum); err != nil {
		return nil, err
	}
	r.optimizer.Steps, r.accumulated, r.diverged = head.Steps, head.Accumulated, head.Diverged
	if resetOptimizer {
		r.optimizer.Steps = 0
		clear(r.optimizer.Mean)
		clear(r.optimizer.Variance)
		r.clearGradient()
	}
	r.adapter.Pack()
	return r, nil
}

func damaged(format string, args ...any) error {
	return domain.Errorf(domain.DataLoss, "the state of the run is damaged: "+format, args...)
}

func readHeader(in io.Reader) (head header, err error) {
	start := make([]byte, len(stateMagic)+4)
	if _, err := io.ReadFull(in, start); err != nil {
		return head, damaged("read header: %v", err)
	}
	n := binary.LittleEndian.Uint32(start[len(stateMagic):])
	if !bytes.HasPrefix(start, []byte(stateMagic)) {
		return head, domain.Errorf(domain.FailedPrecondition, "this is no state of a run of the embedded engine")
	}
	if n > maxHeaderBytes {
		return head, damaged("its header has %d bytes", n)
	}
	data := make([]byte, n)
	if _, err := io.ReadFull(in, data); err != nil {
		return head, damaged("read header: %v", err)
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return head, damaged("parse header: %v", err)
	}
	if head.Version != stateVersion {
		return head, domain.Errorf(domain.FailedPrecondition, "the state of the run has the version %d, this engine reads %d",
			head.Version, stateVersion)
	}
	return head, nil
}

// checkSum reads the checksum, and compares it with that of what was read before.
func checkSum(state io.Reader, sum hash.Hash) error {
	want := make([]byte, sum.Size())
	if _, err := io.ReadFull(state, want); err != nil {
		return damaged("read checksum: %v", err)
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return damaged("its checksum differs")
	}
	if n, err := io.ReadFull(state, make([]byte, 1)); n > 0 || err != io.EOF {
		return damaged("bytes follow the checksum")
	}
	return nil
}

// floatsAtOnce is the number of values that are converted at a time.
const floatsAtOnce = 1 << 14

func writeFloats(to io.Writer, v []float32) error {
	buffer := make([]byte, 0, 4*floatsAtOnce)
	for len(v) > 0 {
		n := min(len(v), floatsAtOnce)
		buffer = buffer[:0]
		for _, x := range v[:n] {
			buffer = binary.LittleEndian.AppendUint32(buffer, math.Float32bits(x))
		}
		if _, err := to.Write(buffer); err != nil {
			return fmt.Errorf("write state of run: %w", err)
		}
		v = v[n:]
	}
	return nil
}

func readFloats(from io.Reader, v []float32) error {
	buffer := make([]byte, 4*floatsAtOnce)
	for len(v) > 0 {
		n := min(len(v), floatsAtOnce)
		if _, err := io.ReadFull(from, buffer[:4*n]); err != nil {
			return err
		}
		for i := range n {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(buffer[4*i:]))
		}
		v = v[n:]
	}
	return nil
}

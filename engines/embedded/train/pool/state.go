package pool

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"math"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// A state begins with the frame of its header: stateMagic, the length of the header as uint32, the
// header as JSON, and the SHA-256 of these. The parameters, both moments and, if there is one, the
// accumulated gradient follow as float32, and then the SHA-256 of everything before. Numbers are
// little-endian. Every version has this frame, so a header is read only if it is not damaged.
const (
	stateMagic     = "anneal-run\n"
	stateVersion   = 2 // version 1 had no checksum of the header
	stateEngine    = "embedded"
	maxHeaderBytes = 1 << 16
)

// A header has the fields of a state that are not vectors.
type header struct {
	Version     int                    `json:"version"`
	Engine      string                 `json:"engine"`
	Kernel      string                 `json:"kernel"` // see kernel.Arithmetic
	Base        string                 `json:"base"`   // hash of the base model's weights
	Config      engines.TrainRunConfig `json:"config"`
	Steps       int                    `json:"steps"`
	Parameters  int                    `json:"parameters"`
	Accumulated bool                   `json:"accumulated,omitempty"` // the state has a gradient
	Diverged    bool                   `json:"diverged,omitempty"`
}

// frame returns the beginning of a state: the header and its checksum.
func (h *header) frame() ([]byte, error) {
	data, err := json.Marshal(h)
	if err != nil {
		return nil, err
	}
	frame := append(binary.LittleEndian.AppendUint32([]byte(stateMagic), uint32(len(data))), data...)
	sum := sha256.Sum256(frame)
	return append(frame, sum[:]...), nil
}

// Save implements engines.TrainRun.
func (r *run) Save(ctx context.Context, to io.Writer) (err error) {
	defer recovered(&err)
	if err := cmp.Or(ctx.Err(), r.err()); err != nil {
		return err
	}
	head := header{stateVersion, stateEngine, r.pool.kernel, r.pool.hash, r.config, r.optimizer.Steps,
		len(r.adapter.Flat()), r.accumulated, r.diverged}
	frame, err := head.frame()
	if err != nil {
		return err
	}
	sum := sha256.New()
	out := io.MultiWriter(to, sum)
	if _, err := out.Write(frame); err != nil {
		return fmt.Errorf("write state of run: %w", err)
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
func (p *Pool) RestoreRun(
	ctx context.Context, state io.Reader, options engines.TrainRestoreOptions,
) (_ engines.TrainRun, err error) {
	defer recovered(&err)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	sum := sha256.New()
	in := io.TeeReader(state, sum)
	head, err := readHeader(in)
	if err == nil {
		err = p.accepts(&head, options)
	}
	if err != nil {
		return nil, err
	}
	head.Config.Share = options.Share
	r, err := p.newRun(head.Config)
	if err != nil {
		return nil, fmt.Errorf("restore run: %w", err)
	}
	if err = r.read(in, &head); err == nil {
		err = checkSum(state, sum)
	}
	if err != nil {
		return nil, errors.Join(err, r.Close())
	}
	if options.ResetOptimizer {
		r.optimizer.Steps = 0
		clear(r.optimizer.Mean)
		clear(r.optimizer.Variance)
		r.clearGradient()
	} else if head.Kernel != p.kernel {
		r.warnings = append(r.warnings, fmt.Sprintf("the state of the run was computed with the kernel %s, and it continues "+
			"with %s: results differ by rounding from those that it would have had", head.Kernel, p.kernel))
	}
	r.adapter.Pack()
	return r, nil
}

// read reads what follows the header of a state.
func (r *run) read(in io.Reader, head *header) error {
	if n := len(r.adapter.Flat()); n != head.Parameters || head.Steps < 0 {
		return damaged("the adapter has %d parameters instead of %d, and %d steps", head.Parameters, n, head.Steps)
	}
	for _, v := range r.vectors(head.Accumulated) {
		if err := readFloats(in, v); err != nil {
			return err
		}
	}
	r.optimizer.Steps, r.accumulated, r.diverged = head.Steps, head.Accumulated, head.Diverged
	return nil
}

// accepts returns FailedPrecondition if the pool cannot continue a run.
func (p *Pool) accepts(head *header, options engines.TrainRestoreOptions) error {
	if head.Engine != stateEngine || head.Version != stateVersion {
		return domain.Errorf(domain.FailedPrecondition,
			"the state of the run has the version %d of the engine %q, but this engine reads the version %d of %q",
			head.Version, head.Engine, stateVersion, stateEngine)
	}
	if head.Base != p.hash {
		return domain.Errorf(domain.FailedPrecondition,
			"the run was trained on the base model %s, but this one is %s: restore it on its base model", head.Base, p.hash)
	}
	if head.Kernel == p.kernel || options.ResetOptimizer || options.AnyKernel {
		return nil
	}
	level, _, _ := strings.Cut(head.Kernel, "-")
	return &domain.Error{Code: domain.FailedPrecondition, Reason: engines.TrainKernelDiffers, Message: fmt.Sprintf(
		"the state of the run was computed with the kernel %s, but this pool has %s, whose results differ by rounding: "+
			"restore it on a node that supports this kernel, with ANNEAL_KERNEL=%s, or allow another kernel",
		head.Kernel, p.kernel, level)}
}

func damaged(format string, args ...any) error {
	return domain.Errorf(domain.DataLoss, "the state of the run is damaged: "+format, args...)
}

// readFull fills data. It returns DataLoss if the state ends before, and another error as it is: the
// state may be read later.
func readFull(from io.Reader, data []byte, what string) error {
	n, err := io.ReadFull(from, data)
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return damaged("its %s ends after %d of %d bytes", what, n, len(data))
	}
	if err != nil {
		return fmt.Errorf("read %s of the state of the run: %w", what, err)
	}
	return nil
}

// readHeader returns the header of a state, which it does not parse before its checksum is verified.
func readHeader(in io.Reader) (head header, err error) {
	sum := sha256.New()
	framed := io.TeeReader(in, sum)
	start := make([]byte, len(stateMagic)+4)
	if err := readFull(framed, start, "header"); err != nil {
		return head, err
	}
	if !bytes.HasPrefix(start, []byte(stateMagic)) {
		return head, damaged("it does not begin with %q", stateMagic)
	}
	n := binary.LittleEndian.Uint32(start[len(stateMagic):])
	if n > maxHeaderBytes {
		return head, damaged("its header has %d bytes, more than %d", n, maxHeaderBytes)
	}
	data := make([]byte, n)
	if err := readFull(framed, data, "header"); err != nil {
		return head, err
	}
	want := make([]byte, sum.Size())
	if err := readFull(in, want, "header"); err != nil {
		return head, err
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return head, damaged("the checksum of its header differs")
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return head, damaged("parse header: %v", err)
	}
	return head, nil
}

// checkSum reads the checksum, and compares it with that of what was read before.
func checkSum(state io.Reader, sum hash.Hash) error {
	want := make([]byte, sum.Size())
	if err := readFull(state, want, "checksum"); err != nil {
		return err
	}
	if !bytes.Equal(want, sum.Sum(nil)) {
		return damaged("its checksum differs")
	}
	n, err := io.ReadFull(state, make([]byte, 1))
	if n > 0 {
		return damaged("bytes follow the checksum")
	}
	if err != io.EOF {
		return fmt.Errorf("read the end of the state of the run: %w", err)
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
		if err := readFull(from, buffer[:4*n], "list of parameters"); err != nil {
			return err
		}
		for i := range n {
			v[i] = math.Float32frombits(binary.LittleEndian.Uint32(buffer[4*i:]))
		}
		v = v[n:]
	}
	return nil
}

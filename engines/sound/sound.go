// Package sound makes recordings of any form ready to be listened to: as a
// stream of samples, cut at its pauses.
package sound

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/sandbox"
)

// MaxDuration is how long a recording may be.
const MaxDuration = 24 * time.Hour

// An Opener opens recordings.
type Opener struct {
	Runner *sandbox.Runner // starts ffmpeg
}

// Open reads a recording as 16 kHz mono samples of 16 bits, little-endian, as
// engines.Listener takes them. A WAV file of just that is read as it is;
// everything else, and each preprocessing, takes ffmpeg. What cannot be decoded
// is told by Open, or by Read where it is found only later; a recording without
// a sample is none of that. When ctx is done, reading ends with its error.
func (o Opener) Open(ctx context.Context, path, preprocessing string) (io.ReadCloser, error) {
	return o.open(ctx, path, preprocessing, MaxDuration)
}

func (o Opener) open(ctx context.Context, path, preprocessing string, longest time.Duration) (io.ReadCloser, error) {
	filter, known := filters[preprocessing]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument, "preprocessing: %q is not known", preprocessing)
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	var decoded io.ReadCloser
	if filter == "" {
		decoded, err = plain(file)
	}
	if decoded == nil && err == nil {
		defer file.Close() // the program has one of its own
		decoded, err = decode(ctx, o.Runner, file, filter)
	}
	if err != nil {
		_ = file.Close() // the first error is told
		return nil, err
	}
	return &bounded{ReadCloser: decoded, ctx: ctx, left: bytesOf(longest), longest: longest}, nil
}

// plain is the samples of a file that needs no decoding; nil for any other.
func plain(file *os.File) (io.ReadCloser, error) {
	samples, err := wav(file)
	if errors.Is(err, errNotPlain) {
		return nil, nil
	}
	if err != nil {
		return nil, withoutPath(err)
	}
	return struct {
		io.Reader
		io.Closer
	}{samples, file}, nil
}

func bytesOf(d time.Duration) int64 {
	return int64(d/time.Millisecond) * engines.SampleRate / 1000 * sampleBytes
}

const sampleBytes = 2

// A bounded stream ends with an error where it is longer than may be, or when
// ctx is done.
type bounded struct {
	io.ReadCloser
	ctx     context.Context
	left    int64
	longest time.Duration
}

func (b *bounded) Read(p []byte) (int, error) {
	if err := b.ctx.Err(); err != nil {
		return 0, err
	}
	n, err := b.ReadCloser.Read(p)
	if b.left -= int64(n); b.left < 0 {
		return 0, unfit("the recording is longer than %s, which is the most: cut it", b.longest)
	}
	return n, err
}

// unfit is what is wrong with a recording.
func unfit(format string, args ...any) error {
	var v domain.Violations
	v.Add("file", format, args...)
	return v.Err()
}

// withoutPath is an error of a file without where that lies.
func withoutPath(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return fmt.Errorf("reading the recording: %s: %w", at.Op, at.Err)
	}
	return err
}

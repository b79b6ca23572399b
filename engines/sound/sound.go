// Package sound decodes recordings of any format to a stream of samples, and splits the stream into
// chunks at pauses.
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

// MaxDuration is the maximum duration of a recording.
const MaxDuration = 24 * time.Hour

// An Opener opens recordings.
type Opener struct {
	Runner *sandbox.Runner // starts ffmpeg
}

// Open decodes a recording to the samples that engines.SpeechModel reads: 16-bit, little-endian,
// mono, 16 kHz. It reads a WAV file of this format itself; any other file, and preprocessing, needs
// ffmpeg. If the file cannot be decoded, Open or a later Read returns an error. A recording without
// samples is no error. Read returns an error after MaxDuration, and the error of ctx when ctx is
// done.
func (o Opener) Open(ctx context.Context, path, preprocessing string) (io.ReadCloser, error) {
	return o.open(ctx, path, preprocessing, MaxDuration)
}

func (o Opener) open(ctx context.Context, path, preprocessing string, longest time.Duration) (io.ReadCloser, error) {
	filter, known := filters[preprocessing]
	if !known {
		return nil, domain.Errorf(domain.InvalidArgument,
			"preprocessing: must be none, dynamic, soft_dynamic or bass_dynamic, not %q", preprocessing)
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
		defer file.Close() // ffmpeg has its own descriptor
		decoded, err = decode(ctx, o.Runner, file, filter)
	}
	if err != nil {
		_ = file.Close() // the earlier error is returned instead
		return nil, err
	}
	return &bounded{ReadCloser: decoded, ctx: ctx, left: bytesOf(longest), longest: longest}, nil
}

// plain returns the samples of a WAV file that needs no decoding; nil for any other file.
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

// A bounded reader returns an error when its maximum length is exceeded or ctx is done.
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
		return 0, invalidFile("the recording is longer than %s, the maximum: split it", b.longest)
	}
	return n, err
}

// invalidFile returns the InvalidArgument error for an invalid recording.
func invalidFile(format string, args ...any) error {
	var v domain.Violations
	v.Add("file", format, args...)
	return v.Err()
}

// withoutPath returns an error of a file without the file's path.
func withoutPath(err error) error {
	var at *os.PathError
	if errors.As(err, &at) {
		return fmt.Errorf("read the recording: %s: %w", at.Op, at.Err)
	}
	return err
}

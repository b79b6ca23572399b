package sound

import (
	"errors"
	"io"
	"math"
	"slices"
	"time"

	"anneal/engines"
)

// A Chunk is a part of a recording.
type Chunk struct {
	Start  float64 // start in seconds from the beginning of the recording
	PCM    []byte  // samples in the format of engines.SpeechModel
	Silent bool    // all frames are quieter than quietLevel
}

// Seconds returns the duration of the chunk.
func (s Chunk) Seconds() float64 { return float64(len(s.PCM)/sampleBytes) / engines.SampleRate }

// A Splitter splits a stream of samples into chunks, at pauses between words if there are any. It
// has one chunk in memory.
type Splitter struct {
	pcm   io.Reader
	held  []byte
	level []float64 // level of each complete frame in memory, in decibels of full scale
	max   int       // maximum number of bytes in memory
	start int64     // number of samples before those in memory
	ended bool
}

const (
	frame = 10 * engines.SampleRate / 1000 * sampleBytes // size of a frame of 10 ms, in bytes
	// pauseFrames is the number of frames (0.3 s) around a position over which its level is averaged.
	pauseFrames = 30
	// quietLevel is the level in decibels below which all frames of a silent chunk are.
	quietLevel = -60.0
	floorLevel = -96.0 // level in decibels of digital silence

	// floorMargin is the number of decibels above the quietest tenth of the frames up to which
	// levels count as equal.
	floorMargin = 3.0

	// earlyCost is the cost in decibels of a split at half of the maximum duration. A split at the
	// maximum duration costs nothing.
	earlyCost = 6.0
)

// NewSplitter returns a Splitter of samples whose chunks last at most longest, or 2 s if longest is
// less.
func NewSplitter(pcm io.Reader, longest time.Duration) *Splitter {
	return &Splitter{pcm: pcm, max: int(max(longest, 2*time.Second)/(10*time.Millisecond)) * frame}
}

// Next returns the next chunk; io.EOF after the last one.
func (c *Splitter) Next() (Chunk, error) {
	if err := c.fill(); err != nil {
		return Chunk{}, err
	}
	if len(c.held) < sampleBytes {
		return Chunk{}, io.EOF
	}
	end := len(c.held) &^ (sampleBytes - 1)
	if !c.ended {
		end = c.quietest() * frame
	}
	frames := (end + frame - 1) / frame
	s := Chunk{
		Start: float64(c.start) / engines.SampleRate, PCM: slices.Clone(c.held[:end]),
		Silent: slices.Max(c.level[:frames]) < quietLevel,
	}
	c.start += int64(end / sampleBytes)
	c.held = append(c.held[:0], c.held[end:]...)
	c.level = append(c.level[:0], c.level[frames:]...)
	return s, nil
}

// fill reads until max bytes are in memory or the stream ends.
func (c *Splitter) fill() error {
	if c.held == nil {
		c.held = make([]byte, 0, c.max)
	}
	if !c.ended && len(c.held) < c.max {
		n, err := io.ReadFull(c.pcm, c.held[len(c.held):c.max])
		c.held = c.held[:len(c.held)+n]
		if c.ended = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF); err != nil && !c.ended {
			return err
		}
	}
	for at := len(c.level) * frame; at < len(c.held); at += frame {
		c.level = append(c.level, loudness(c.held[at:min(at+frame, len(c.held))]))
	}
	return nil
}

// quietest returns the frame at which to split: the position in the second half of the samples in
// memory with the lowest sum of its level and a cost, which is higher for earlier positions (see
// earlyCost). All levels below floor, which is floorMargin above the level of the quietest tenth of
// the frames, count as floor. So of two pauses that differ only in noise, the later one is chosen.
func (c *Splitter) quietest() int {
	sorted := slices.Sorted(slices.Values(c.level))
	floor := sorted[len(sorted)/10] + floorMargin
	sum, best, place := 0.0, math.Inf(1), len(c.level)
	for end, level := range c.level {
		sum += max(level, floor)
		if end >= pauseFrames {
			sum -= max(c.level[end-pauseFrames], floor)
		}
		middle := end + 1 - pauseFrames/2
		if early := len(c.level) - end - 1; middle >= len(c.level)/2 {
			cost := sum/pauseFrames + earlyCost*float64(2*early)/float64(len(c.level))
			if cost <= best {
				best, place = cost, middle
			}
		}
	}
	return place
}

// loudness returns the root mean square of samples, in decibels of full scale.
func loudness(pcm []byte) float64 {
	sum, n := 0.0, len(pcm)/sampleBytes
	for i := range n {
		x := float64(int16(uint16(pcm[2*i])|uint16(pcm[2*i+1])<<8)) / 32768
		sum += x * x
	}
	if sum == 0 {
		return floorLevel
	}
	return 10 * math.Log10(sum/float64(n))
}

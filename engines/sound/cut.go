package sound

import (
	"errors"
	"io"
	"math"
	"slices"
	"time"

	"anneal/engines"
)

// A Stretch is a part of a recording.
type Stretch struct {
	Start float64 // in seconds from the beginning of the recording
	PCM   []byte  // whole samples
	Quiet bool    // nothing in it is louder than what every recorder adds
}

// Seconds is how long it is.
func (s Stretch) Seconds() float64 { return float64(len(s.PCM)/sampleBytes) / engines.SampleRate }

// A Cutter cuts a stream of samples into stretches, between words where it can:
// its memory is that of one stretch.
type Cutter struct {
	pcm   io.Reader
	held  []byte
	level []float64 // of each whole frame that is held, in decibels of full scale
	most  int       // bytes that may be held
	start int64     // samples before those that are held
	ended bool
}

const (
	frame       = 10 * engines.SampleRate / 1000 * sampleBytes // bytes of 10 ms
	pauseFrames = 30                                           // a place is as quiet as 0.3 s around it
	quietLevel  = -60.0                                        // decibels; the loudest frame of what is quiet lies below
	floorLevel  = -96.0                                        // one bit
	floorMargin = 3.0                                          // decibels above the quietest tenth that are as good as silence
	earlyCost   = 6.0                                          // decibels that a place must be quieter by at half of the longest
)

// NewCutter cuts stretches that are at most longest, which is 2 s or more.
func NewCutter(pcm io.Reader, longest time.Duration) *Cutter {
	return &Cutter{pcm: pcm, most: int(max(longest, 2*time.Second)/(10*time.Millisecond)) * frame}
}

// Next is the next stretch; io.EOF is that there is none.
func (c *Cutter) Next() (Stretch, error) {
	if err := c.fill(); err != nil {
		return Stretch{}, err
	}
	if len(c.held) < sampleBytes {
		return Stretch{}, io.EOF
	}
	end := len(c.held) &^ (sampleBytes - 1)
	if !c.ended {
		end = c.quietest() * frame
	}
	frames := (end + frame - 1) / frame
	s := Stretch{
		Start: float64(c.start) / engines.SampleRate, PCM: slices.Clone(c.held[:end]),
		Quiet: slices.Max(c.level[:frames]) < quietLevel,
	}
	c.start += int64(end / sampleBytes)
	c.held = append(c.held[:0], c.held[end:]...)
	c.level = append(c.level[:0], c.level[frames:]...)
	return s, nil
}

// fill reads until as much is held as may be, or the stream ends.
func (c *Cutter) fill() error {
	if c.held == nil {
		c.held = make([]byte, 0, c.most)
	}
	if !c.ended && len(c.held) < c.most {
		n, err := io.ReadFull(c.pcm, c.held[len(c.held):c.most])
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

// quietest is the frame in the later half of what is held where it is quietest,
// the later the better. How quiet silence is, is what the quietest tenth of the
// frames are: so of two pauses in the same noise the later one is taken.
func (c *Cutter) quietest() int {
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

// loudness is the root mean square of samples, in decibels of full scale.
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

package request

import (
	"fmt"
	"time"
)

// Limits bound the resources of a request. For a zero field, the value in DefaultLimits applies.
type Limits struct {
	Body           int64         // bytes of a JSON body
	Bodies         int64         // bytes of memory for concurrent JSON bodies; each account may use a quarter
	BodyTime       time.Duration // maximum time for a JSON body to arrive
	Grace          time.Duration // time that a body may take in addition to what Rate allows
	Rate           int64         // bytes per second at which an upload must arrive on average
	AnswerTime     time.Duration // maximum time for the client to read each 64 KiB of a response
	Upload         int64         // bytes of one uploaded dataset file
	ModelFile      int64         // bytes of one file of a model
	ModelFiles     int           // files of one model
	Wake           time.Duration // how long a request waits for a replica
	Validation     time.Duration // how long a request waits for the validation of its upload
	RepeatWait     time.Duration // how long a repeated request waits for the response to the first
	PositionWait   time.Duration // how long a request waits for the position in anneal-at-least
	SignedURL      time.Duration // how long signed URLs are valid
	Heartbeat      time.Duration // interval of comments on an idle stream of events
	Streams        int           // concurrent streams of events, per account
	Generations    int           // concurrent completions, per account
	Audio          int64         // bytes of one recording
	Fetch          time.Duration // maximum time for downloading a recording from a URL
	Transcription  time.Duration // maximum time for transcribing one recording
	Transcriptions int           // concurrent transcriptions, per account
	ScaleToZero    time.Duration // shortest scaleToZeroWindow; zero means domain.MinScaleToZeroWindow
	JobTime        time.Duration // age at which an unfinished job expires; zero means never
}

// DefaultLimits are the defaults of a server. Its flags and the documentation state these values.
var DefaultLimits = Limits{
	Body:           4 << 20,
	Bodies:         512 << 20,
	BodyTime:       time.Minute,
	Grace:          30 * time.Second,
	Rate:           4 << 10,
	AnswerTime:     time.Minute,
	Upload:         150_000_000,
	ModelFile:      100 << 30,
	ModelFiles:     500,
	Wake:           time.Minute,
	Validation:     time.Minute,
	RepeatWait:     2 * time.Second,
	PositionWait:   5 * time.Second,
	SignedURL:      time.Hour,
	Heartbeat:      15 * time.Second,
	Streams:        100,
	Generations:    256,
	Audio:          1_000_000_000,
	Fetch:          5 * time.Minute,
	Transcription:  2 * time.Hour,
	Transcriptions: 32,
}

// WithDefaults returns the limits with zero fields replaced by the values in DefaultLimits.
func (l Limits) WithDefaults() Limits {
	orDefault(&l.Body, DefaultLimits.Body)
	orDefault(&l.Bodies, DefaultLimits.Bodies)
	orDefault(&l.BodyTime, DefaultLimits.BodyTime)
	orDefault(&l.Grace, DefaultLimits.Grace)
	orDefault(&l.Rate, DefaultLimits.Rate)
	orDefault(&l.AnswerTime, DefaultLimits.AnswerTime)
	orDefault(&l.Upload, DefaultLimits.Upload)
	orDefault(&l.ModelFile, DefaultLimits.ModelFile)
	orDefault(&l.ModelFiles, DefaultLimits.ModelFiles)
	orDefault(&l.Wake, DefaultLimits.Wake)
	orDefault(&l.Validation, DefaultLimits.Validation)
	orDefault(&l.RepeatWait, DefaultLimits.RepeatWait)
	orDefault(&l.PositionWait, DefaultLimits.PositionWait)
	orDefault(&l.SignedURL, DefaultLimits.SignedURL)
	orDefault(&l.Heartbeat, DefaultLimits.Heartbeat)
	orDefault(&l.Streams, DefaultLimits.Streams)
	orDefault(&l.Generations, DefaultLimits.Generations)
	orDefault(&l.Audio, DefaultLimits.Audio)
	orDefault(&l.Fetch, DefaultLimits.Fetch)
	orDefault(&l.Transcription, DefaultLimits.Transcription)
	orDefault(&l.Transcriptions, DefaultLimits.Transcriptions)
	return l
}

func orDefault[T int | int64 | time.Duration](limit *T, def T) {
	if *limit <= 0 {
		*limit = def
	}
}

// ByteSize returns a number of bytes in the largest unit that divides it, such as 64 KiB or 150 MB.
func ByteSize(n int64) string {
	for _, unit := range []struct {
		bytes int64
		name  string
	}{{1 << 30, "GiB"}, {1e9, "GB"}, {1 << 20, "MiB"}, {1e6, "MB"}, {1 << 10, "KiB"}, {1e3, "kB"}} {
		if n%unit.bytes == 0 {
			return fmt.Sprintf("%d %s", n/unit.bytes, unit.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}

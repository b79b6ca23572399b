package api

import (
	"fmt"
	"time"
)

// Limits bound what a request may take. A zero value means the one of DefaultLimits.
type Limits struct {
	Body           int64         // bytes of a JSON body
	Bodies         int64         // bytes of memory for concurrent JSON bodies; a quarter of it for each account
	BodyTime       time.Duration // for the whole of a JSON body to arrive
	Grace          time.Duration // by which a body may lag behind Rate
	Rate           int64         // bytes per second at which an upload must arrive on average
	AnswerTime     time.Duration // for the client to read each 64 KiB of a response
	Upload         int64         // bytes of one uploaded dataset file
	ModelFile      int64         // bytes of one file of a model
	ModelFiles     int           // files of one model
	Wake           time.Duration // how long a request waits for a replica
	Verdict        time.Duration // how long an upload waits for the check of its rows
	Twin           time.Duration // how long a repeated request waits for the response to the first
	SignedURL      time.Duration // how long signed URLs are valid
	Heartbeat      time.Duration // between comments on an idle stream of events
	Streams        int           // concurrent streams of events, per account
	Generations    int           // concurrent completions, per account
	Audio          int64         // bytes of one recording
	Fetch          time.Duration // for reading a recording from a URL
	Transcription  time.Duration // for transcribing one recording
	Transcriptions int           // concurrent transcriptions, per account
	ScaleToZero    time.Duration // shortest scaleToZeroWindow; zero means domain.MinScaleToZeroWindow
	JobTime        time.Duration // after which an unfinished job expires; zero means never
}

// DefaultLimits are the limits of a server that is given none. The flags of the server and the
// documentation state these values.
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
	Verdict:        time.Minute,
	Twin:           2 * time.Second,
	SignedURL:      time.Hour,
	Heartbeat:      15 * time.Second,
	Streams:        100,
	Generations:    256,
	Audio:          1_000_000_000,
	Fetch:          5 * time.Minute,
	Transcription:  2 * time.Hour,
	Transcriptions: 32,
}

func (l Limits) withDefaults() Limits {
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
	orDefault(&l.Verdict, DefaultLimits.Verdict)
	orDefault(&l.Twin, DefaultLimits.Twin)
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

// byteSize returns a number of bytes in the largest unit that divides it, such as 64 KiB or 150 MB.
func byteSize(n int64) string {
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

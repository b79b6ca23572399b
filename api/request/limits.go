package request

import (
	"fmt"
	"time"
)

// Limits bounds what requests may use. A zero field means the value in DefaultLimits.
type Limits struct {
	Body int64 // maximum bytes of a JSON body
	// maximum bytes of memory for all concurrent JSON bodies; one account may use a quarter
	Bodies   int64
	BodyTime time.Duration // time in which a JSON body must arrive
	// time that the body of an upload may take in addition to its size divided by Rate
	Grace      time.Duration
	Rate       int64         // minimum average speed of an upload, in bytes per second
	AnswerTime time.Duration // time in which the client must read each 64 KiB of a response
	Upload     int64         // maximum bytes of a dataset file
	ModelFile  int64         // maximum bytes of a model file
	ModelFiles int           // maximum number of files of a model
	Wake       time.Duration // maximum wait of a request for a replica that is starting
	// predicted wait in the admission queue of a deployment above which a request is refused
	QueueWait  time.Duration
	Validation time.Duration // maximum wait of a request until its upload is validated
	// maximum wait of a retry for the response to an earlier attempt that is in progress
	RepeatWait     time.Duration
	PositionWait   time.Duration // maximum wait of a request for the position in its header anneal-at-least
	SignedURL      time.Duration // how long signed URLs are valid
	Heartbeat      time.Duration // interval between the comments that keep an idle stream of events open
	Streams        int           // maximum concurrent streams of events of an account
	Generations    int           // maximum concurrent completions of an account
	Audio          int64         // maximum bytes of a recording
	Fetch          time.Duration // time in which a recording or image must be downloaded from its URL
	Transcription  time.Duration // time in which a recording must be transcribed
	Transcriptions int           // maximum concurrent transcriptions of an account
	ScaleToZero    time.Duration // minimum scaleToZeroWindow; zero means domain.MinScaleToZeroWindow
	JobTime        time.Duration // age at which an unfinished job expires; zero means never
}

// DefaultLimits has the default values of the server's limits. The server's flags and the
// documentation state the same values.
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
	QueueWait:      10 * time.Second,
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

// WithDefaults returns a copy of the limits in which zero fields have the values of DefaultLimits.
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
	orDefault(&l.QueueWait, DefaultLimits.QueueWait)
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

// ByteSize formats a number of bytes in the largest unit that divides it, such as 64 KiB or 150 MB.
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

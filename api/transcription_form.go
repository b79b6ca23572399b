package api

import (
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"reflect"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
)

// A TranscriptionForm is a multipart/form-data body that asks for a transcript.
type TranscriptionForm struct {
	File                   request.File `json:"file,omitempty"`
	URL                    string       `json:"url,omitempty"`
	Model                  string       `json:"model"`
	ResponseFormat         string       `json:"response_format,omitempty"`
	TimestampGranularities []string     `json:"timestamp_granularities,omitempty"`
	Language               string       `json:"language,omitempty"`
	Prompt                 string       `json:"prompt,omitempty"`
	Temperature            string       `json:"temperature,omitempty"`
	Task                   string       `json:"task,omitempty"`
	VADModel               string       `json:"vad_model,omitempty"`
	AlignmentModel         string       `json:"alignment_model,omitempty"`
	Preprocessing          string       `json:"preprocessing,omitempty"`
	Diarize                bool         `json:"diarize,omitempty"`
	MinSpeakers            int          `json:"min_speakers,omitempty"`
	MaxSpeakers            string       `json:"max_speakers,omitempty"`
	Stream                 bool         `json:"stream,omitempty"`
}

// Limits of a form with a recording.
const (
	maxFormFields = 128
	maxFieldSize  = 16 << 10
	maxFieldName  = 256     // bytes
	formRoom      = 4 << 20 // bytes around the file
)

// A recording is what a form carries: the file, stored until the request is
// answered, and the fields.
type recording struct {
	*intake
	values     map[string][]string
	unknown    []string
	uploads    int // files that the form has
	violations domain.Violations
}

// audioFile is the name of the file in its folder.
const audioFile = "audio"

// readRecording takes in a form, whose parts may come in any order. The caller
// discards it.
func (c *call) readRecording() (*recording, error) {
	folder := blobs.TransientFolder(c.Principal.Account, uuid.NewString())
	in := &recording{intake: c.newIntake(folder, fileLimit{files: 1, bytes: c.server.Limits.Audio}), values: map[string][]string{}}
	if c.Request.ContentLength > c.server.Limits.Audio+formRoom {
		return in, recordingTooLarge(c.server.Limits.Audio)
	}
	c.Request.Body = &boundedBody{http.MaxBytesReader(c.Writer, c.Request.Body, c.server.Limits.Audio+formRoom), c.server.Limits.Audio} // not all tell how long they are
	form, err := c.form()
	if err != nil {
		return in, err
	}
	for n := 0; ; n++ {
		part, err := form.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			_, _ = io.CopyN(io.Discard, c.Request.Body, maxFieldSize) // only then is a closed connection noticed
			return in, nil
		case err != nil:
			return in, brokenForm(err)
		case n == maxFormFields:
			var v domain.Violations
			v.Add("request", "has more than %d fields: send fewer", maxFormFields)
			return in, v.Err()
		}
		if err := in.take(part); err != nil {
			return in, err
		}
	}
}

// howToCut is what whoever has a long recording can do.
const howToCut = "cut it into parts, such as `ffmpeg -i talk.mp3 -f segment -segment_time 1800 -c copy part-%03d.mp3` makes of half an hour each"

func recordingTooLarge(limit int64) *domain.Error {
	f := request.BodyTooLarge(limit)
	f.Message = fmt.Sprintf("the request is larger than the %d bytes that a recording may have: %s", limit, howToCut)
	return f
}

// A boundedBody says of what is too large that it is.
type boundedBody struct {
	io.ReadCloser
	limit int64 // that is told
}

func (b *boundedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		err = recordingTooLarge(b.limit)
	}
	return n, err
}

func brokenForm(err error) error {
	if f := request.ErrorOf(err); f.Reason == request.ReasonBodyTooLarge || f.Reason == request.ReasonTooSlow {
		return f
	}
	var v domain.Violations
	v.Add("request", "the multipart body is broken or ends too early: send it again, as multipart/form-data with a field \"file\"")
	return v.Err()
}

// formFields are the names of the fields of a TranscriptionForm.
var formFields = func() map[string]bool {
	names := map[string]bool{}
	for _, f := range wire.StructOf(reflect.TypeFor[TranscriptionForm]()).Fields {
		names[f.Name] = true
	}
	return names
}()

// take takes in one part: the file, or a field.
func (in *recording) take(part *multipart.Part) error {
	if len(part.FormName()) > maxFieldName {
		in.violations.Add("request", "has a field whose name is longer than %d bytes: correct it", maxFieldName)
		return notEOF(drain(part))
	}
	given := strings.TrimSuffix(part.FormName(), "[]")
	name := given
	if !formFields[name] {
		name = wire.Snake(given)
	}
	kind := part.Header.Get("Content-Type")
	if name == "file" && (part.FileName() != "" || kind != "" && !strings.HasPrefix(kind, "text/plain")) {
		if in.uploads++; in.uploads > 1 {
			return notEOF(drain(part))
		}
		err := in.file(audioFile, part)
		if err != nil && request.ErrorOf(err).Reason == request.ReasonBodyTooLarge {
			return recordingTooLarge(in.limit.bytes)
		}
		return err
	}
	if !formFields[name] {
		in.unknown = append(in.unknown, part.FormName())
		return notEOF(drain(part))
	}
	value, err := io.ReadAll(io.LimitReader(part, maxFieldSize+1))
	switch {
	case err != nil:
		return brokenForm(err)
	case len(value) > maxFieldSize:
		in.violations.Add(name, "must have at most %d bytes", maxFieldSize)
		return notEOF(drain(part))
	case !utf8.Valid(value):
		in.violations.Add(name, "must be UTF-8")
		return nil
	}
	if text := string(value); text != "" { // an empty field is as good as none
		in.values[name] = append(in.values[name], text)
	}
	return nil
}

// drain passes over what nobody looks at.
func drain(part *multipart.Part) error {
	if _, err := io.Copy(io.Discard, part); err != nil {
		return brokenForm(err)
	}
	return nil
}

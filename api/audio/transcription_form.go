package audio

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
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/blobs"
	"anneal/domain"
)

// A TranscriptionForm is the multipart/form-data body of a request for a transcription or
// translation.
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

// Limits of the form of a transcription request.
const (
	MaxFormFields = 128
	MaxFieldSize  = 16 << 10
	maxFieldName  = 256     // maximum size of a field's name, in bytes
	FormOverhead  = 4 << 20 // bytes that the body may have in addition to those of the recording
)

// A formReader reads the form of a request. It stores the recording until the request ends.
type formReader struct {
	*upload.Intake
	service    *Service
	values     map[string][]string
	unknown    []string
	uploads    int // number of parts with a file that were read
	violations domain.Violations
}

// audioFile is the name under which the recording is stored.
const audioFile = "audio"

// readForm reads the form, whose parts may be in any order. The caller must call Discard of the
// formReader, even after an error.
func (c *call) readForm() (*formReader, error) {
	directory := blobs.TransientPrefix(c.Principal.Account, uuid.NewString())
	in := &formReader{
		Intake:  c.Uploads.NewIntake(c.Call, directory, upload.Limit{Files: 1, Bytes: c.Limits.Audio}),
		service: c.Service,
		values:  map[string][]string{},
	}
	if c.Request.ContentLength > c.Limits.Audio+FormOverhead {
		return in, recordingTooLarge(c.Limits.Audio)
	}
	// MaxBytesReader also bounds a chunked body, which has no Content-Length
	c.Request.Body = &limitedBody{http.MaxBytesReader(c.Writer, c.Request.Body, c.Limits.Audio+FormOverhead),
		c.Limits.Audio}
	form, err := upload.Form(c.Call)
	if err != nil {
		return in, err
	}
	for n := 0; ; n++ {
		part, err := form.NextPart()
		switch {
		case errors.Is(err, io.EOF):
			// net/http detects a disconnected client only after the end of the body was read
			_, _ = io.CopyN(io.Discard, c.Request.Body, MaxFieldSize)
			return in, nil
		case err != nil:
			return in, formError(err)
		case n == MaxFormFields:
			var v domain.Violations
			v.Add("request", "has more than %d fields: send a form with the file and its options only", MaxFormFields)
			return in, v.Err()
		}
		if err := in.readPart(part); err != nil {
			return in, err
		}
	}
}

// splitHint is the advice in errors about recordings that are too long.
const splitHint = "split the recording, for example into parts of 30 minutes with " +
	"`ffmpeg -i talk.mp3 -f segment -segment_time 1800 -c copy part-%03d.mp3`"

func recordingTooLarge(limit int64) *domain.Error {
	f := request.BodyTooLarge(limit)
	f.Message = fmt.Sprintf("the recording exceeds the limit of %d bytes: %s", limit, splitHint)
	return f
}

// A limitedBody is a body behind an http.MaxBytesReader. If the body exceeds the reader's limit,
// Read returns the error of recordingTooLarge.
type limitedBody struct {
	io.ReadCloser
	limit int64 // maximum size of the recording in bytes, which the error states
}

func (b *limitedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	var tooLarge *http.MaxBytesError
	if errors.As(err, &tooLarge) {
		err = recordingTooLarge(b.limit)
	}
	return n, err
}

// formError returns the error that the client gets if reading the form fails with err.
func formError(err error) error {
	if f := request.ErrorOf(err); f.Reason == request.ReasonBodyTooLarge || f.Reason == request.ReasonTooSlow {
		return f
	}
	var v domain.Violations
	v.Add("request", "the multipart body is malformed or incomplete: send multipart/form-data with a field \"file\"")
	return v.Err()
}

// FormFields is the set of the names of a TranscriptionForm's fields.
var FormFields = func() map[string]bool {
	names := map[string]bool{}
	for _, f := range wire.StructOf(reflect.TypeFor[TranscriptionForm]()).Fields {
		names[f.Name] = true
	}
	return names
}()

// readPart reads one part of the form: the file or another field.
func (in *formReader) readPart(part *multipart.Part) error {
	if len(part.FormName()) > maxFieldName {
		in.violations.Add("request", "has a field with a name of more than %d bytes: remove the field", maxFieldName)
		return wire.NotEOF(discard(part))
	}
	field := strings.TrimSuffix(part.FormName(), "[]")
	name := field
	if !FormFields[name] {
		name = wire.Snake(field)
	}
	kind := part.Header.Get("Content-Type")
	if name == "file" && (part.FileName() != "" || kind != "" && !strings.HasPrefix(kind, "text/plain")) {
		if in.uploads++; in.uploads > 1 {
			return wire.NotEOF(discard(part))
		}
		err := in.File(audioFile, part)
		if err != nil && request.ErrorOf(err).Reason == request.ReasonBodyTooLarge {
			return recordingTooLarge(in.Limit.Bytes)
		}
		return err
	}
	if !FormFields[name] {
		in.unknown = append(in.unknown, part.FormName())
		return wire.NotEOF(discard(part))
	}
	value, err := io.ReadAll(io.LimitReader(part, MaxFieldSize+1))
	switch {
	case err != nil:
		return formError(err)
	case len(value) > MaxFieldSize:
		in.violations.Add(name, "must have at most %d bytes", MaxFieldSize)
		return wire.NotEOF(discard(part))
	case !utf8.Valid(value):
		in.violations.Add(name, "must be text in UTF-8")
		return nil
	}
	if text := string(value); text != "" { // an empty field counts as absent
		in.values[name] = append(in.values[name], text)
	}
	return nil
}

// discard reads a part to its end.
func discard(part *multipart.Part) error {
	if _, err := io.Copy(io.Discard, part); err != nil {
		return formError(err)
	}
	return nil
}

package external

import (
	"maps"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

// speechChanges changes, one at a time, each option of a transcription. The numbers of speakers
// have an effect only with diarization, so their changes also enable it.
var speechChanges = map[string]func(*engines.TranscriptionOptions){
	"TranscriptionOptions.Language":    func(o *engines.TranscriptionOptions) { o.Language = "de" },
	"TranscriptionOptions.Prompt":      func(o *engines.TranscriptionOptions) { o.Prompt = "p" },
	"TranscriptionOptions.Temperature": func(o *engines.TranscriptionOptions) { o.Temperature = []float64{0.5} },
	"TranscriptionOptions.Translate":   func(o *engines.TranscriptionOptions) { o.Translate = true },
	"TranscriptionOptions.VAD":         func(o *engines.TranscriptionOptions) { o.VAD = engines.VADSilero },
	"TranscriptionOptions.Alignment":   func(o *engines.TranscriptionOptions) { o.Alignment = engines.AlignMMS },
	"TranscriptionOptions.Words":       func(o *engines.TranscriptionOptions) { o.Words = true },
	"TranscriptionOptions.Diarize":     func(o *engines.TranscriptionOptions) { o.Diarize = true },
	"TranscriptionOptions.MinSpeakers": func(o *engines.TranscriptionOptions) { o.Diarize, o.MinSpeakers = true, 2 },
	"TranscriptionOptions.MaxSpeakers": func(o *engines.TranscriptionOptions) { o.Diarize, o.MaxSpeakers = true, 2 },
}

// TestOptionsOfTranscriptionsAct checks for each format and each option of a transcription that the
// server receives the option, or that an error rejects it.
func TestOptionsOfTranscriptionsAct(t *testing.T) {
	require.ElementsMatch(t, fieldsOf[engines.TranscriptionOptions](), slices.Collect(maps.Keys(speechChanges)))
	for _, format := range Formats() {
		m := &speechModel{dialect: dialects[format], settings: domain.SpeechSettings{Format: format,
			VADModels: map[string]string{engines.VADSilero: "silero.bin"}}}
		if !m.dialect.vadFile { // see transcriber.check
			m.settings.AlignmentModels = map[string]string{engines.AlignMMS: "mms"}
		}
		if m.dialect.diarization != "" {
			m.settings.DiarizationModel = "pyannote"
		}
		fields := func(o engines.TranscriptionOptions) string {
			f := newForm()
			require.NoError(t, f.writer.SetBoundary("boundary"))
			o.Words = o.Words || o.Diarize // as Transcribe does
			m.dialect.fields(f, m.settings, o)
			return f.head.String()
		}
		for name, change := range speechChanges {
			var o engines.TranscriptionOptions
			before := fields(o)
			change(&o)
			acts := changed(t, before, fields(o), m.Check(o))
			if name == "TranscriptionOptions.Translate" && m.dialect.translation != "" {
				acts = true // has its own path
			}
			if name == "TranscriptionOptions.Words" && m.dialect.tokens {
				acts = true // response.transcript makes words of the tokens, which are always returned
			}
			require.True(t, acts, "%s: %s", format, name)
		}
	}
}

package audio

import (
	"anneal/api/wire"
	"anneal/domain"
)

// rules constrains the values of fields of this package's wire types: see openapi.Documentation.
var rules = map[string]wire.Rule{
	"TranscriptionForm.url":             {MaxLength: domain.MaxURL},
	"TranscriptionForm.model":           {MaxLength: 512},
	"TranscriptionForm.response_format": wire.OneOf(TranscriptFormats...),
	"timestamp_granularities": {Instead: wire.Schema{"anyOf": []any{granularity,
		wire.Schema{"type": "array", "items": granularity}}}},
	"TranscriptionForm.language":    wire.OneOf(domain.SpeechLanguages...),
	"TranscriptionForm.prompt":      {MaxLength: MaxSpeechPrompt},
	"TranscriptionForm.temperature": {Pattern: `^[0-9.]+( *, *[0-9.]+)*$`},
	"task":                          wire.OneOf(taskTranscribe, taskTranslate),
	"vad_model":                     wire.OneOf(domain.VADModels...),
	"alignment_model":               wire.OneOf(domain.AlignmentModels...),
	"preprocessing":                 wire.OneOf(preprocessings...),
	"min_speakers":                  wire.Between(1, maxSpeakers),
	"max_speakers":                  {Pattern: "^([0-9]+|inf)$"},
	"TranscriptSegment.temperature": {},
	"VerboseTranscript.language":    {},
	"TranscriptWord.language":       {},
	"TranscriptEvent.type":          wire.OneOf(EventDelta, eventProgress, EventDone),
	"AudioUsage.type":               wire.OneOf("duration"),
}

var granularity = wire.Schema{"type": "string", "enum": []string{"word", "segment", "word,segment"}}

// typeTexts describes the wire types of this package in the API reference.
var typeTexts = map[string]string{
	"TranscriptionForm": "Form with a recording and the options of its transcription.",
	"Transcript":        "Transcript of a recording.",
	"VerboseTranscript": "Transcript of a recording with the times of its words and segments.",
	"TranscriptWord":    "Word of a transcript with its start and end time.",
	"TranscriptSegment": "Segment of a transcript with its start and end time.",
	"TranscriptEvent":   "One event of a streamed transcript.",
	"AudioUsage":        "Length of the recording that was transcribed, for billing.",
}

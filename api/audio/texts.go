package audio

import "anneal/api/request"

// fieldTexts describes the fields of this package's wire types in the API reference.
var fieldTexts = map[string]string{
	"TranscriptionForm.file": "Recording, in a format that the node's decoder supports; 16 kHz mono WAV is always " +
		"supported. If the form field has no file name, its value is the URL of the recording. Maximum size: " +
		request.ByteSize(request.DefaultLimits.Audio) + ", unless the operator has configured another limit.",
	"TranscriptionForm.url": "URL of the recording, as an alternative to file. It must be http or https, " +
		"and refer to a public address.",
	"TranscriptionForm.model": "Name of a speech model or of its deployment, as in completions, or an alias " +
		"that the operator bound to a deployment, such as speech-v3.",
	"TranscriptionForm.response_format": "Format of the response. Default: json.",
	"timestamp_granularities": "Which times a response in verbose_json has: word, segment (the default), or " +
		"both, as word,segment or as two fields. The field can also be named timestamp_granularities[].",
	"TranscriptionForm.language": "Language code of the speech. By default, the model detects the language.",
	"TranscriptionForm.prompt": "Context for the model: the transcript of the speech before the recording, or words " +
		"with the spelling that the transcript should use. " +
		"If the prompt contains filler words, the transcript contains filler words too.",
	"TranscriptionForm.temperature": "Sampling temperature from 0 to 1, or an ascending list of multiples of 0.2, " +
		"such as 0.0,0.2,0.4. If the quality of the text is too low, the model tries the next temperature in the list.",
	"task": "transcribe, or translate to translate the speech into English. At the path " +
		"/audio/translations, the value must be translate.",
	"vad_model": "Model for voice activity detection (VAD). By default, the speech model uses its " +
		"own method.",
	"alignment_model": "Model that aligns words with times: mms_fa for many languages, tdnn_ffn for " +
		"English. By default, the speech model uses its own method.",
	"preprocessing": "Audio filter before the transcription: dynamic for recordings of varying " +
		"loudness, soft_dynamic for mostly speech, bass_dynamic to boost low frequencies too.",
	"diarize": "Whether the response states the speaker of each word. Requires verbose_json " +
		"with timestamp_granularities word.",
	"min_speakers": "Minimum number of speakers that diarization distinguishes.",
	"max_speakers": "Maximum number of speakers that diarization distinguishes. The default, inf, " +
		"means no maximum.",
	"TranscriptionForm.stream":      "Whether the response is a stream of server-sent events.",
	"Transcript.text":               "Transcript of the recording; empty if it contains no speech.",
	"VerboseTranscript.text":        "Transcript of the recording; empty if it contains no speech.",
	"VerboseTranscript.task":        "Task of the request: transcribe or translate.",
	"VerboseTranscript.language":    "Language code of the speech; empty if unknown.",
	"VerboseTranscript.duration":    "Length of the recording, in seconds.",
	"words":                         "Words with times, if timestamp_granularities contains word.",
	"segments":                      "Segments with times, if timestamp_granularities contains segment.",
	"word":                          "Text of the word.",
	"start":                         "Start time, in seconds from the start of the recording.",
	"end":                           "End time, in seconds from the start of the recording.",
	"TranscriptWord.language":       "Language code of the word.",
	"probability":                   "Probability that the model assigns to the word, from 0 to 1.",
	"speaker_id":                    "Identifier of the speaker; present if the request has diarize.",
	"TranscriptSegment.id":          "Index of the segment in the transcript, from 0.",
	"TranscriptSegment.text":        "Text of the segment.",
	"seek":                          "Start of the segment in the recording, in hundredths of a second.",
	"TranscriptSegment.tokens":      "Token IDs of the segment's text, if the model reports them.",
	"TranscriptSegment.temperature": "Sampling temperature with which the segment was decoded.",
	"avg_logprob":                   "Mean log-probability of the segment's tokens.",
	"compression_ratio": "Compression ratio of the segment's text. A high ratio means that the model " +
		"repeats itself.",
	"no_speech_prob": "Probability that the segment contains no speech, from 0 to 1.",
	"TranscriptEvent.type": "Type of the event: transcript.text.delta has the next part of the text, " +
		"transcript.progress has the number of seconds transcribed, and transcript.text.done, the last event, has the " +
		"complete text.",
	"TranscriptEvent.delta":   "Next part of the transcript; for the formats srt and vtt, complete cues.",
	"TranscriptEvent.text":    "Complete transcript; for the formats srt and vtt, the complete subtitle file.",
	"TranscriptEvent.seconds": "Length of the recording's part that was transcribed so far, in seconds.",
	"TranscriptEvent.usage":   "Length of the recording, for billing.",
	"transcript":              "Transcript with times, if response_format is verbose_json.",
	"AudioUsage.type":         "Kind of the usage, always duration.",
	"AudioUsage.seconds":      "Length of the recording, in seconds.",
}

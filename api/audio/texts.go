package audio

import "anneal/api/request"

// fieldTexts describe the fields of this package's wire types.
var fieldTexts = map[string]string{
	"TranscriptionForm.file": "Recording, in a format that the node's decoder supports; 16 kHz mono WAV is always " +
		"supported. Without a file name, the value is the recording's URL. Maximum size: " +
		request.ByteSize(request.DefaultLimits.Audio) + ", unless the operator has configured another.",
	"TranscriptionForm.url": "URL of the recording, instead of file: http or https, at a public address.",
	"TranscriptionForm.model": "Name of the speech model or its deployment, as for completions, or an alias that the " +
		"operator gave to a deployment, such as speech-v3.",
	"TranscriptionForm.response_format": "Format of the response. Default: json.",
	"timestamp_granularities": "Times that verbose_json contains: word, segment (the default), or both, as " +
		"word,segment or as two fields. The field can also be called timestamp_granularities[].",
	"TranscriptionForm.language": "Language code of the speech. Default: detected from the recording.",
	"TranscriptionForm.prompt": "Transcript of the speech before the recording, or a list of words to spell as given. " +
		"If the prompt contains filler words, the transcript contains filler words too.",
	"TranscriptionForm.temperature": "Sampling temperature from 0 to 1, or an ascending list of multiples of 0.2, " +
		"such as 0.0,0.2,0.4. The model tries the next temperature of the list when the quality of the text is too low.",
	"task": "transcribe, or translate for a translation into English. On the path of translations, the value must be " +
		"translate.",
	"vad_model": "Model for voice activity detection. Default: the speech model's own method.",
	"alignment_model": "Model for the alignment of words: mms_fa for many languages, tdnn_ffn for English. Default: " +
		"the speech model's own method.",
	"preprocessing": "Filter for the audio: dynamic for varying loudness, soft_dynamic for mostly speech, " +
		"bass_dynamic to boost low frequencies as well.",
	"diarize":                       "Whether to identify speakers. Requires verbose_json with timestamps of words.",
	"min_speakers":                  "Minimum number of speakers.",
	"max_speakers":                  "Maximum number of speakers. The default, inf, means no maximum.",
	"TranscriptionForm.stream":      "Whether the response is a stream of server-sent events.",
	"Transcript.text":               "Text; empty for silence.",
	"VerboseTranscript.text":        "Text; empty for silence.",
	"VerboseTranscript.task":        "Task of the request.",
	"VerboseTranscript.language":    "Language code of the speech; empty if unknown.",
	"VerboseTranscript.duration":    "Length of the recording, in seconds.",
	"words":                         "Words, if requested.",
	"segments":                      "Segments, if requested.",
	"word":                          "Word.",
	"start":                         "Start time, in seconds from the start of the recording.",
	"end":                           "End time, in seconds from the start of the recording.",
	"TranscriptWord.language":       "Language code of the word.",
	"probability":                   "Probability that the model assigns to the word, from 0 to 1.",
	"speaker_id":                    "Speaker, with diarize.",
	"TranscriptSegment.id":          "Index of the segment, from 0.",
	"TranscriptSegment.text":        "Text of the segment.",
	"seek":                          "Start time, in hundredths of a second.",
	"TranscriptSegment.tokens":      "Token IDs, if the model reports them.",
	"TranscriptSegment.temperature": "Temperature with which the segment was decoded.",
	"avg_logprob":                   "Mean log-probability of the tokens.",
	"compression_ratio":             "Compression ratio of the text. A high ratio means that the model repeats itself.",
	"no_speech_prob":                "Probability that the segment contains no speech, from 0 to 1.",
	"TranscriptEvent.type": "Type of the event: transcript.text.delta has the next part of the text, " +
		"transcript.progress has the progress, and transcript.text.done, the last event, has the complete text.",
	"TranscriptEvent.delta":   "Next part of the text; for srt and vtt, complete cues.",
	"TranscriptEvent.text":    "Complete text; for srt and vtt, the complete file.",
	"TranscriptEvent.seconds": "Length of the part that was transcribed, in seconds.",
	"TranscriptEvent.usage":   "Usage of the transcription.",
	"transcript":              "Transcript with times, if response_format is verbose_json.",
	"AudioUsage.type":         "Unit of the usage: duration.",
	"AudioUsage.seconds":      "Length of the recording, in seconds.",
}

package external

import (
	"cmp"
	"math"
	"strconv"

	"anneal/domain"
	"anneal/engines"
)

// A dialect describes the transcription API of a kind of server.
type dialect struct {
	preset      preset
	model       string // name of the model in requests; "" sends no name
	slots       int    // number of concurrent requests
	translation string // URL path for translations; "" if a field of the transcription request selects them
	diarization string // URL path for diarization; "" if the server has no diarization
	hub         bool   // the server loads the model from a Hugging Face cache
	vadFile     bool   // the voice activity model is a file in the server's command line
	increments  bool   // requests have a temperature and an increment instead of a list of temperatures
	tokens      bool   // responses have tokens instead of words
	fields      func(f *form, s domain.SpeechSettings, o engines.TranscriptionOptions)
}

const transcriptions = "/v1/audio/transcriptions"

var dialects = map[string]dialect{
	domain.SpeechFasterWhisper: {
		preset: preset{
			command: "uvicorn --factory --host 127.0.0.1 --port {port} speaches.main:create_app",
			install: "install speaches and uvicorn in one Python environment whose programs are in PATH, or set " +
				"--speech-command",
			health: "/health", keyEnv: "API_KEY", prefixes: append([]string{"WHISPER__", "HF_HOME"}, devices...),
		},
		model: hubName, slots: 4, hub: true,
		translation: "/v1/audio/translations", diarization: "/v1/audio/diarization",
		fields: func(f *form, s domain.SpeechSettings, o engines.TranscriptionOptions) {
			openAIFields(f, o)
			if o.VAD != "" {
				f.add("vad_filter", "true")
			}
			namedModels(f, s, o)
		},
	},
	domain.SpeechWhisperCPP: {
		preset: preset{
			command: "whisper-server -m {file} --host 127.0.0.1 --port {port} --inference-path " + transcriptions + " {vad}",
			install: "build whisper.cpp, or install its package, so that whisper-server is in PATH",
			health:  "/health", prefixes: append([]string{"GGML_"}, devices...),
		},
		slots: 1, vadFile: true, increments: true, tokens: true,
		fields: func(f *form, _ domain.SpeechSettings, o engines.TranscriptionOptions) {
			f.add("language", cmp.Or(o.Language, "auto"))
			// The probabilities of all languages take as long to compute as the transcription.
			f.add("no_language_probabilities", "true")
			if o.Translate {
				f.add("translate", "true")
			}
			if o.Prompt != "" {
				f.add("prompt", o.Prompt)
			}
			if o.VAD != "" {
				f.add("vad", "true")
			}
			if len(o.Temperature) > 0 {
				f.add("temperature", number(o.Temperature[0]))
				f.add("temperature_inc", number(increment(o.Temperature)))
			}
		},
	},
	domain.SpeechOpenAI: {
		preset: preset{
			command: "vllm serve {dir} --host 127.0.0.1 --port {port} --served-model-name {name} --tensor-parallel-size " +
				"{devices}",
			install: "install it with `pip install vllm[audio]` on a machine with GPUs",
			health:  "/health", keyEnv: "VLLM_API_KEY", env: []string{"VLLM_NO_USAGE_STATS=1"},
			prefixes: append([]string{"VLLM_", "HF_HOME", "TORCH_", "TRITON_"}, devices...),
		},
		model: baseName, slots: 8, translation: "/v1/audio/translations",
		fields: func(f *form, s domain.SpeechSettings, o engines.TranscriptionOptions) {
			openAIFields(f, o)
			namedModels(f, s, o)
		},
	},
}

// openAIFields adds the fields of OpenAI's transcription and translation APIs to a form.
func openAIFields(f *form, o engines.TranscriptionOptions) {
	if o.Language != "" && !o.Translate {
		f.add("language", o.Language)
	}
	if o.Prompt != "" {
		f.add("prompt", o.Prompt)
	}
	if len(o.Temperature) > 0 {
		f.add("temperature", number(o.Temperature[0]))
	}
	if !o.Translate {
		f.add("timestamp_granularities[]", "segment")
		if o.Words {
			f.add("timestamp_granularities[]", "word")
		}
	}
}

// namedModels adds the names of the voice activity model and the alignment model to a form. The
// settings s have the names on the server.
func namedModels(f *form, s domain.SpeechSettings, o engines.TranscriptionOptions) {
	if o.VAD != "" {
		f.add("vad_model", s.VADModels[o.VAD])
	}
	if o.Alignment != "" {
		f.add("alignment_model", s.AlignmentModels[o.Alignment])
	}
}

// increment returns the increment of a list of temperatures that rises in equal steps to 1.0. It
// returns 0 for a list with at most one temperature, and -1 for any other list.
func increment(list []float64) float64 {
	const epsilon = 1e-6
	if len(list) < 2 {
		return 0
	}
	step := list[1] - list[0]
	for i := 1; i < len(list); i++ {
		if math.Abs(list[i]-list[i-1]-step) > epsilon {
			return -1
		}
	}
	if step < epsilon || math.Abs(list[len(list)-1]-1) > epsilon {
		return -1
	}
	return math.Round(step*1e6) / 1e6
}

func number(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }

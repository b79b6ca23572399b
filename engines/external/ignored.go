package external

// ignored are the fields that the servers of a preset ignore, by preset, as TYPE.FIELD of package
// engines. Neither the command line nor the requests of the server contain them, and no error
// reports that. Every other field has an effect, or is rejected.
var ignored = map[string][]string{
	VLLM:     {"CompletionRequest.Prediction", "CompletionRequest.Speculation"},
	LlamaCpp: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength"},
	OpenAI: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength",
		"SpeculationMode.Tokens", "ModelFiles.LongPrompts", "ModelFiles.ContextLength"},
}

// Ignored returns the fields of engines.ModelFiles, engines.SpeculationMode and
// engines.CompletionRequest that the servers of a preset ignore, as TYPE.FIELD.
func Ignored(preset string) []string { return ignored[preset] }

package external

// ignored are the fields that servers of each preset ignore, by TYPE.FIELD of package engines: users set
// them, but neither the server's command line nor a request has them, and no error says so. The other
// fields act, or are rejected.
var ignored = map[string][]string{
	VLLM:     {"CompletionRequest.Prediction", "CompletionRequest.Speculation"},
	LlamaCpp: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength"},
	OpenAI: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength",
		"SpeculationMode.Tokens", "ModelFiles.LongPrompts", "ModelFiles.ContextLength"},
}

// Ignored returns the fields of engines.ModelFiles, engines.SpeculationMode and engines.CompletionRequest
// that servers of a preset ignore, as TYPE.FIELD.
func Ignored(preset string) []string { return ignored[preset] }

package external

// ignored lists, for each preset, the fields that its servers ignore, as TYPE.FIELD of package
// engines. A request or a deployment can set these fields, but neither the server's command line
// nor its requests contain them, and no error reports that. Each other field has an effect, or is
// rejected.
var ignored = map[string][]string{
	VLLM:     {"CompletionRequest.Prediction", "CompletionRequest.Speculation"},
	LlamaCpp: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength"},
	OpenAI: {"CompletionRequest.Prediction", "CompletionRequest.Speculation", "SpeculationMode.NgramLength",
		"SpeculationMode.Tokens", "ModelFiles.LongPrompts", "ModelFiles.ContextLength"},
}

// Ignored returns the fields of engines.ModelFiles, engines.SpeculationMode and engines.CompletionRequest
// that servers of a preset ignore, as TYPE.FIELD.
func Ignored(preset string) []string { return ignored[preset] }

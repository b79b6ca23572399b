package embedded

import (
	"os"
	"path/filepath"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Supports returns an error if the engine cannot serve the model in dir, a Hugging Face or PEFT
// directory. It reads only the small files, not the weights.
func Supports(dir string) error {
	if _, err := os.Stat(filepath.Join(dir, "adapter_config.json")); err == nil {
		return llama.CheckAdapter(dir)
	}
	if _, err := llama.ReadConfig(dir); err != nil {
		return err
	}
	_, err := tokenizer.Load(dir)
	return err
}

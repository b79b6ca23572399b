package embedded

import (
	"os"
	"path/filepath"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Supports returns an error if the engine cannot serve a model. It reads the small files of the
// Hugging Face or PEFT directory, which are the first that loading reads. The weights are not
// needed.
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

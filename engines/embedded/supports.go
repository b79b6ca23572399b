package embedded

import (
	"os"
	"path/filepath"

	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/tokenizer"
)

// Supports answers why this engine cannot serve a model, nil when it can: it
// reads what it would read first to load the model, which is the small files of
// its Hugging Face or PEFT directory. The weights need not be there.
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

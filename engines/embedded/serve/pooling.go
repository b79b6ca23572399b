package serve

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"anneal/domain"
	"anneal/engines"
)

// pooling describes how an embedding is computed from the hidden states of a text, according to
// modules.json and the config.json of the module Pooling of a sentence-transformers model. For a
// model without these files, it is the normalized hidden state of the last token, as in vLLM.
type pooling struct {
	mean        bool   // use the mean of all hidden states instead of the last one
	normalize   bool   // scale the embedding to length 1
	unsupported string // reason why the model cannot compute embeddings; "" if it can
}

// maxModuleFile is the maximum size in bytes of modules.json and of a module's config.json.
const maxModuleFile = 1 << 20

// readPooling reads the pooling of the model in dir.
func readPooling(dir string) (pooling, error) {
	var modules []struct{ Type, Path string }
	switch err := readJSON(filepath.Join(dir, "modules.json"), &modules); {
	case errors.Is(err, fs.ErrNotExist):
		return pooling{normalize: true}, nil
	case err != nil:
		return pooling{}, err
	}
	p := pooling{unsupported: "modules.json has no module of the type Pooling"}
	for _, one := range modules {
		switch kind := one.Type[strings.LastIndex(one.Type, ".")+1:]; kind {
		case "Transformer":
		case "Pooling":
			if err := p.readModes(dir, one.Path); err != nil {
				return pooling{}, err
			}
		case "Normalize":
			p.normalize = true
		default:
			p.unsupported = fmt.Sprintf("modules.json has a module of the type %s, which this engine does not implement", kind)
			return p, nil
		}
	}
	return p, nil
}

// readModes reads the config.json of the module Pooling in the subdirectory path.
func (p *pooling) readModes(dir, path string) error {
	if !filepath.IsLocal(path) {
		return domain.Errorf(domain.FailedPrecondition,
			"modules.json: the path %q of Pooling leaves the model's directory", path)
	}
	file := filepath.Join(path, "config.json")
	var fields map[string]any
	switch err := readJSON(filepath.Join(dir, file), &fields); {
	case errors.Is(err, fs.ErrNotExist):
		return domain.Errorf(domain.FailedPrecondition, "modules.json names %s, which the model lacks: upload it", file)
	case err != nil:
		return err
	}
	var modes []string
	for name, on := range fields {
		if strings.HasPrefix(name, "pooling_mode_") && on == true {
			modes = append(modes, name)
		}
	}
	slices.Sort(modes)
	p.unsupported = ""
	switch strings.Join(modes, ", ") {
	case "pooling_mode_mean_tokens":
		p.mean = true
	case "pooling_mode_lasttoken":
	default:
		p.unsupported = fmt.Sprintf("%s sets %q; this engine supports either pooling_mode_mean_tokens or "+
			"pooling_mode_lasttoken", file, strings.Join(modes, ", "))
	}
	return nil
}

func readJSON(path string, out any) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if info.Size() > maxModuleFile {
		return domain.Errorf(domain.FailedPrecondition, "%s has %d bytes, more than the limit of %d", filepath.Base(path),
			info.Size(), maxModuleFile)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, out); err != nil {
		return domain.Errorf(domain.FailedPrecondition, "parse %s: %v", filepath.Base(path), err)
	}
	return nil
}

// A pooler computes the embedding of a text from the hidden states of its tokens, which are added
// in order. It sums them in float64, so that the embedding does not depend on how the tokens are
// divided into steps.
type pooler struct {
	pooling
	sum   []float64
	count int
}

// add adds the hidden state of the next token.
func (p *pooler) add(hidden []float32) {
	if p.sum == nil || !p.mean {
		p.sum, p.count = make([]float64, len(hidden)), 0
	}
	for i, v := range hidden {
		p.sum[i] += float64(v)
	}
	p.count++
}

// vector returns the embedding of the added tokens.
func (p *pooler) vector() []float32 {
	factor := 1 / float64(p.count)
	if p.normalize {
		factor = engines.UnitFactor(p.sum)
	}
	out := make([]float32, len(p.sum))
	for i, v := range p.sum {
		out[i] = float32(v * factor)
	}
	return out
}

package hub

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// weightSuffixes are the suffixes of files with weights. Without patterns, Choose prefers files
// with the first suffix to files with the second, and ignores the others, whose formats cannot be
// served.
var weightSuffixes = []string{".safetensors", ".gguf", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".onnx",
	".ot",
	".tflite", ".npz"}

// suffixOf returns the suffix of weightSuffixes that a file name has; "" if it has none.
func suffixOf(name string) string {
	for _, suffix := range weightSuffixes {
		if strings.HasSuffix(name, suffix) {
			return suffix
		}
	}
	return ""
}

// Choose returns the files of a model that are needed to serve it: the weights, in safetensors
// files or in the only GGUF file, and the other files at the top level and in the modules of a
// sentence-transformers model. If patterns are given, it returns the files that match one of them
// instead. Patterns have the syntax of path.Match; a pattern without a slash matches files in every
// directory.
func (m Model) Choose(patterns []string) ([]File, error) {
	if len(patterns) > 0 {
		return m.matching(patterns)
	}
	var chosen []File
	weights := map[string][]File{}
	for _, f := range m.Files {
		switch suffix := suffixOf(f.Name); {
		case f.Size == 0 || strings.HasPrefix(path.Base(f.Name), "."):
		case suffix != "" && !strings.Contains(f.Name, "/"):
			weights[suffix] = append(weights[suffix], f)
		case suffix == "" && (!strings.Contains(f.Name, "/") || isModule(f.Name)):
			chosen = append(chosen, f)
		}
	}
	tensors, gguf := weights[".safetensors"], weights[".gguf"]
	switch {
	case len(tensors) > 0:
		return append(chosen, withoutConsolidated(tensors)...), nil
	case len(gguf) == 1:
		return append(chosen, gguf...), nil
	case len(gguf) > 1:
		return nil, fmt.Errorf("%s has %d GGUF files: choose one with --include, such as --include '%s'",
			m.Name(), len(gguf),
			gguf[0].Name)
	}
	return nil, fmt.Errorf("%s has no safetensors and no GGUF files at its top level: convert its weights, or choose "+
		"files with --include", m.Name())
}

// withoutConsolidated removes from tensors, a list of safetensors files, those that repeat the
// weights of the others in another layout, such as consolidated.safetensors.
func withoutConsolidated(tensors []File) []File {
	usual := slices.DeleteFunc(slices.Clone(tensors),
		func(f File) bool { return strings.HasPrefix(f.Name, "consolidated") })
	if len(usual) == 0 {
		return tensors
	}
	return usual
}

// isModule reports whether a file is in the directory of a module of a sentence-transformers model,
// such as 1_Pooling/config.json.
func isModule(name string) bool {
	dir, _, _ := strings.Cut(name, "/")
	number, _, ok := strings.Cut(dir, "_")
	return ok && len(number) == 1 && number[0] >= '0' && number[0] <= '9'
}

func (m Model) matching(patterns []string) ([]File, error) {
	used := make([]bool, len(patterns))
	var chosen []File
	for _, f := range m.Files {
		matches := false
		for i, pattern := range patterns {
			name := f.Name
			if !strings.Contains(pattern, "/") {
				name = path.Base(name)
			}
			ok, err := path.Match(pattern, name)
			if err != nil {
				return nil, fmt.Errorf("--include %q is not a valid pattern: use *, ? and [a-z], such as *.safetensors", pattern)
			}
			used[i] = used[i] || ok
			matches = matches || ok
		}
		if matches && f.Size > 0 {
			chosen = append(chosen, f)
		}
	}
	if i := slices.Index(used, false); i >= 0 {
		return nil, fmt.Errorf("--include %q matches no file of %s", patterns[i], m.Name())
	}
	return chosen, nil
}

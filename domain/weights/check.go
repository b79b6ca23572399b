package weights

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"anneal/domain"
)

// A Report holds the metadata of a model, read from its files, and the violations of the files. The
// field of a violation is the name of a file, or "kind" when the files are those of a model of
// another kind.
type Report struct {
	domain.ModelMetadata
	Violations domain.Violations
}

// MaxViolations is the maximum number of violations of one upload that are listed.
const MaxViolations = 100

// maxAllTensors is the maximum number of tensors of all files together.
const maxAllTensors = 1_000_000

// Check validates the files of a model: configuration, tokenizer, and the headers of all weight
// files. It returns an error only when a file cannot be read.
func Check(f Directory) (Report, error) {
	c := checker{dir: f, shapes: map[string][]int64{}, sizes: map[string]int64{}}
	if _, adapter := f.Sizes[adapterConfigFile]; adapter && f.Sizes["config.json"] == 0 {
		c.add("kind", "the files are those of an adapter: create the model with kind %s and its baseModel", domain.PEFTAddon)
		return c.report, nil
	}
	config, err := f.ReadConfig()
	if err := c.invalidFile("config.json", err); err != nil {
		return c.report, err
	}
	if err := c.weights(); err != nil {
		return c.report, err
	}
	if err == nil {
		c.compareWithConfig(&config)
	}
	if err := c.tokenizer(config.VocabSize); err != nil {
		return c.report, err
	}
	c.report.ModelType, c.report.ContextLength, c.report.Embedding = config.ModelType, int(config.MaxPositions),
		config.isEmbedding(f)
	c.report.Vision = config.readsImages() || f.hasProjector()
	return c.finish(), nil
}

// A checker collects the tensors and the violations of a model's files.
type checker struct {
	dir    Directory
	shapes map[string][]int64 // shape of each tensor; nil once a file is invalid, so that no tensor counts as missing
	sizes  map[string]int64   // count of stored numbers, by number type
	report Report
}

// maxName is the maximum number of bytes of a file name or a model_type in a message, because
// uploaded files can contain names of any length.
const maxName = 200

func (c *checker) add(file, format string, args ...any) {
	if len(file) > maxName {
		file = strings.ToValidUTF8(file[:maxName], "") + "…"
	}
	c.report.Violations.Add(file, format, args...)
}

// invalidFile records a violation if err says that the content of the file is invalid. It returns
// any other error unchanged.
func (c *checker) invalidFile(file string, err error) error {
	var e invalid
	if errors.As(err, &e) {
		c.add(file, "%s", e.why)
		return nil
	}
	return err
}

// finish returns the report with sorted violations, and with the parameter count and the precision
// of the tensors.
func (c *checker) finish() Report {
	v := c.report.Violations
	slices.SortStableFunc(v, func(a, b domain.Violation) int { return cmp.Compare(a.Field, b.Field) })
	if more := len(v) - MaxViolations + 1; more > 1 {
		v = append(v[:MaxViolations-1:MaxViolations-1],
			domain.Violation{Field: v[MaxViolations-1].Field, Description: fmt.Sprintf("and %d more violations", more)})
	}
	c.report.Violations = v
	largest := int64(0)
	for _, dtype := range slices.Sorted(maps.Keys(c.sizes)) {
		c.report.ParameterCount += domain.Count(c.sizes[dtype])
		if c.sizes[dtype] > largest {
			largest, c.report.Precision = c.sizes[dtype], precisions[dtype]
		}
	}
	return c.report
}

// precisions maps the number types of safetensors files to the precisions of deployments.
var precisions = map[string]string{"F32": "FP32", "BF16": "BF16", "F16": "FP16", "F8_E4M3": "FP8", "F8_E5M2": "FP8",
	"F64": "FP64"}

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
)

// An index maps each tensor of a sharded model to its file.
type index struct {
	Metadata  map[string]json.RawMessage `json:"metadata,omitempty"`
	WeightMap map[string]string          `json:"weight_map"`
}

// WeightFiles returns the names of the files with the model's weights: one file, or the shards that
// the index names. Other weight files are not part of the model.
func (f Directory) WeightFiles() ([]string, error) {
	if _, adapter := f.Sizes[adapterConfigFile]; adapter {
		return []string{adapterFile}, nil
	}
	if _, sharded := f.Sizes[indexFile]; !sharded {
		return []string{weightsFile}, nil
	}
	index, err := f.readIndex()
	if err != nil {
		return nil, err
	}
	return slices.Compact(slices.Sorted(maps.Values(index.WeightMap))), nil
}

func (f Directory) readIndex() (index, error) {
	var i index
	err := f.readJSON(indexFile, maxIndex, &i)
	if err == nil && len(i.WeightMap) == 0 {
		err = invalidf("has no weight_map that names tensors and their files")
	}
	return i, err
}

// TensorPrefix begins the names of the decoder's tensors in the weights of a causal language model.
// Weights that were saved without the language model head lack the prefix.
const TensorPrefix = "model."

// weights reads the headers of all weight files and compares them with the index.
func (c *checker) weights() error {
	var where map[string]string // tensor → file; nil if there is only one file
	if _, sharded := c.dir.Sizes[indexFile]; sharded {
		index, err := c.dir.readIndex()
		if err != nil {
			c.shapes = nil
			return c.invalidFile(indexFile, err)
		}
		where = index.WeightMap
	} else if _, ok := c.dir.Sizes[weightsFile]; !ok {
		c.shapes = nil
		c.add(weightsFile, "%s", c.missingWeights())
		return nil
	}
	files := []string{weightsFile}
	if where != nil {
		files = slices.Compact(slices.Sorted(maps.Values(where)))
	}
	whole := true
	for _, file := range files {
		if _, ok := c.dir.Sizes[file]; !ok {
			c.add(file, "is missing, but %s names it", indexFile)
			whole = false
			continue
		}
		found := len(c.report.Violations)
		if err := c.header(file, where); err != nil {
			return err
		}
		whole = whole && len(c.report.Violations) == found
	}
	for _, tensor := range slices.Sorted(maps.Keys(where)) {
		if _, ok := c.shapes[tensor]; !ok && whole {
			c.add(where[tensor], "lacks the tensor %s, which %s expects there", quoted(tensor), indexFile)
		}
	}
	if !whole {
		c.shapes = nil
	}
	return nil
}

// missingWeights returns the message about a model that has no weight files in a supported format.
func (c *checker) missingWeights() string {
	for name := range c.dir.Sizes {
		switch {
		case strings.HasSuffix(name, ".safetensors"):
			return fmt.Sprintf("is missing: rename the weight file, or upload %s with all files that it names",
				indexFile)
		case strings.HasSuffix(name, ".bin"), strings.HasSuffix(name, ".pt"), strings.HasSuffix(name, ".pth"),
			strings.HasSuffix(name, ".gguf"):
			return "is missing: only the format safetensors is supported; convert the weights to it"
		}
	}
	return fmt.Sprintf("is missing, and so is %s: upload the weights as safetensors", indexFile)
}

// header adds the tensors in the header of a file to the checker. where maps each tensor to the
// file in which the index expects it; nil without an index.
func (c *checker) header(file string, where map[string]string) error {
	h, err := c.dir.ReadHeader(file)
	if err != nil {
		return c.invalidFile(file, err)
	}
	if len(c.shapes)+len(h.Tensors) > maxAllTensors {
		c.add(file, "exceeds the limit of %d tensors in all files", maxAllTensors)
		return nil
	}
	for _, t := range h.Tensors {
		if where != nil && where[t.Name] != file {
			c.add(file, "has the tensor %s, which %s does not expect there", quoted(t.Name), indexFile)
			continue
		}
		c.shapes[t.Name] = t.Shape
		c.sizes[t.DType] += t.Count()
	}
	return nil
}

// compareWithConfig records a violation for each invalid setting of the configuration, and for each
// tensor that is missing or differs from those that the configuration implies.
func (c *checker) compareWithConfig(config *Config) {
	if config.ModelType == "" {
		c.add("config.json", "model_type is missing")
		return
	}
	if len(config.ModelType) > maxName {
		c.add("config.json", "model_type has more than %d bytes", maxName)
		return
	}
	if r, at, found := domain.ControlCharacter(config.ModelType, false); found {
		c.add("config.json", "model_type must not have control characters, such as U+%04X at character %d", r, at)
		return
	}
	if !config.isKnownFamily() {
		return
	}
	if why := config.invalidSettings(); len(why) > 0 {
		for _, one := range why {
			c.add("config.json", "%s", one)
		}
		return
	}
	file := weightsFile
	if _, sharded := c.dir.Sizes[indexFile]; sharded {
		file = indexFile
	}
	for name, want := range config.expected() {
		shape, ok := c.shapes[name]
		if !ok { // embedding models are often saved without the language model head, and without TensorPrefix
			shape, ok = c.shapes[strings.TrimPrefix(name, TensorPrefix)]
		}
		switch {
		case c.shapes == nil:
			return
		case !ok:
			c.add(file, "lacks the tensor %s of shape %v, which the config.json of a %s model implies", quoted(name), want,
				config.ModelType)
		case !slices.Equal(shape, want):
			c.add(file, "has the tensor %s with shape %v, but config.json implies %v", quoted(name), shape, want)
		}
	}
}

// tokenizer records a violation if the model has no tokenizer, or a token whose ID is not below
// vocabulary, the size of the model's vocabulary.
func (c *checker) tokenizer(vocabulary int64) error {
	has := func(name string) bool { _, ok := c.dir.Sizes[name]; return ok }
	if has("tokenizer_config.json") {
		var anything map[string]json.RawMessage
		if err := c.invalidFile("tokenizer_config.json",
			c.dir.readJSON("tokenizer_config.json", maxConfig, &anything)); err != nil {
			return err
		}
	}
	if !has("tokenizer.json") {
		if !has("tokenizer.model") && !(has("vocab.json") && has("merges.txt")) && !has("vocab.txt") {
			c.add("tokenizer.json", "is missing: upload the model's tokenizer too")
		}
		return nil
	}
	var t struct {
		Added []struct {
			ID int64 `json:"id"`
		} `json:"added_tokens"`
		Model struct {
			Vocab json.RawMessage `json:"vocab"`
		} `json:"model"`
	}
	if err := c.dir.readJSON("tokenizer.json", maxTokenizer, &t); err != nil {
		return c.invalidFile("tokenizer.json", err)
	}
	highest := int64(-1)
	for _, added := range t.Added {
		highest = max(highest, added.ID)
	}
	var byName map[string]int64
	var inOrder []json.RawMessage
	switch {
	case json.Unmarshal(t.Model.Vocab, &byName) == nil:
		for _, id := range byName {
			highest = max(highest, id)
		}
	case json.Unmarshal(t.Model.Vocab, &inOrder) == nil:
		highest = max(highest, int64(len(inOrder))-1)
	default:
		c.add("tokenizer.json", "has no vocabulary in the field model.vocab")
	}
	if vocabulary > 0 && highest >= vocabulary {
		c.add("tokenizer.json",
			"has a token with ID %d, but vocab_size in config.json is %d: upload both files of the same model",
			highest, vocabulary)
	}
	return nil
}

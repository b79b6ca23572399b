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

// A Report is what the files of a model say, and everything that is wrong with
// them: each violation names a file.
type Report struct {
	domain.ModelFacts
	Violations domain.Violations
}

// MaxViolations bounds how many faults of one upload are told.
const MaxViolations = 100

// maxAllTensors bounds the tensors of all files together.
const maxAllTensors = 1_000_000

// Check reads the files of a model: configuration, tokenizer, and the header of
// every file of weights. An error is trouble with reading them.
func Check(f Folder) (Report, error) {
	c := checker{folder: f, shapes: map[string][]int64{}, sizes: map[string]int64{}}
	if _, adapter := f.Sizes[adapterConfigFile]; adapter && f.Sizes["config.json"] == 0 {
		c.add("kind", "the files are those of an adapter: create the model with kind %s and its baseModel", domain.PEFTAddon)
		return c.report, nil
	}
	config, err := f.ReadConfig()
	if err := c.fault("config.json", err); err != nil {
		return c.report, err
	}
	if err := c.weights(); err != nil {
		return c.report, err
	}
	if err == nil {
		c.holdAgainst(&config)
	}
	if err := c.tokenizer(config.VocabSize); err != nil {
		return c.report, err
	}
	c.report.ModelType, c.report.ContextLength, c.report.Embedding = config.ModelType, int(config.MaxPositions), config.embeds(f)
	return c.finish(), nil
}

// A checker gathers what the files say.
type checker struct {
	folder Folder
	shapes map[string][]int64 // of each tensor; nil when some are not known, and would be missed wrongly
	sizes  map[string]int64   // numbers stored as each type
	report Report
}

// maxName bounds what is told of names that are not the folder's own: an index
// may name anything.
const maxName = 200

func (c *checker) add(file, format string, args ...any) {
	if len(file) > maxName {
		file = strings.ToValidUTF8(file[:maxName], "") + "…"
	}
	c.report.Violations.Add(file, format, args...)
}

// fault notes what is wrong with a file; other trouble is handed on.
func (c *checker) fault(file string, err error) error {
	var b broken
	if errors.As(err, &b) {
		c.add(file, "%s", b.why)
		return nil
	}
	return err
}

// finish puts the violations in order and counts what was found.
func (c *checker) finish() Report {
	v := c.report.Violations
	slices.SortStableFunc(v, func(a, b domain.Violation) int { return cmp.Compare(a.Field, b.Field) })
	if more := len(v) - MaxViolations + 1; more > 1 {
		v = append(v[:MaxViolations-1:MaxViolations-1], domain.Violation{Field: v[MaxViolations-1].Field, Description: fmt.Sprintf("and %d more faults", more)})
	}
	c.report.Violations = v
	most := int64(0)
	for _, dtype := range slices.Sorted(maps.Keys(c.sizes)) {
		c.report.ParameterCount += domain.Count(c.sizes[dtype])
		if c.sizes[dtype] > most {
			most, c.report.Precision = c.sizes[dtype], precisions[dtype]
		}
	}
	return c.report
}

// precisions names the types of numbers as deployments do.
var precisions = map[string]string{"F32": "FP32", "BF16": "BF16", "F16": "FP16", "F8_E4M3": "FP8", "F8_E5M2": "FP8", "F64": "FP64"}

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
)

// An index says in which file each tensor of a sharded model lies.
type index struct {
	Metadata  map[string]json.RawMessage `json:"metadata,omitempty"`
	WeightMap map[string]string          `json:"weight_map"`
}

// WeightFiles are the files that hold the weights: one, or the shards that the
// index names. Other files of weights in the folder are no part of the model.
func (f Folder) WeightFiles() ([]string, error) {
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

func (f Folder) readIndex() (index, error) {
	var i index
	err := f.readJSON(indexFile, maxIndex, &i)
	if err == nil && len(i.WeightMap) == 0 {
		err = brokenf("has no weight_map that names tensors and their files")
	}
	return i, err
}

// weights reads the header of every file of weights and holds it against the
// index.
func (c *checker) weights() error {
	var where map[string]string // nil when all lies in one file
	if _, sharded := c.folder.Sizes[indexFile]; sharded {
		index, err := c.folder.readIndex()
		if err != nil {
			c.shapes = nil
			return c.fault(indexFile, err)
		}
		where = index.WeightMap
	} else if _, ok := c.folder.Sizes[weightsFile]; !ok {
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
		if _, ok := c.folder.Sizes[file]; !ok {
			c.add(file, "is missing, and %s names it", indexFile)
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
			c.add(where[tensor], "lacks the tensor %s, which %s names there", shown(tensor), indexFile)
		}
	}
	if !whole {
		c.shapes = nil
	}
	return nil
}

// missingWeights is what to do about a folder without weights that can be read.
func (c *checker) missingWeights() string {
	for name := range c.folder.Sizes {
		switch {
		case strings.HasSuffix(name, ".safetensors"):
			return fmt.Sprintf("is missing: name the one file of weights so, or upload %s with all files that it names", indexFile)
		case strings.HasSuffix(name, ".bin"), strings.HasSuffix(name, ".pt"), strings.HasSuffix(name, ".pth"), strings.HasSuffix(name, ".gguf"):
			return "is missing: weights are read as safetensors alone; convert them"
		}
	}
	return fmt.Sprintf("is missing, and there is no %s", indexFile)
}

// header takes over what one file holds; where says which tensors belong there.
func (c *checker) header(file string, where map[string]string) error {
	h, err := c.folder.ReadHeader(file)
	if err != nil {
		return c.fault(file, err)
	}
	if len(c.shapes)+len(h.Tensors) > maxAllTensors {
		c.add(file, "has tensors that are more than %d together with those before", maxAllTensors)
		return nil
	}
	for _, t := range h.Tensors {
		if where != nil && where[t.Name] != file {
			c.add(file, "has the tensor %s, which %s does not name there", shown(t.Name), indexFile)
			continue
		}
		c.shapes[t.Name] = t.Shape
		c.sizes[t.DType] += t.Count()
	}
	return nil
}

// holdAgainst compares the tensors with what the configuration makes expect.
func (c *checker) holdAgainst(config *Config) {
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
	if !config.knows() {
		return
	}
	if why := config.trouble(); len(why) > 0 {
		for _, one := range why {
			c.add("config.json", "%s", one)
		}
		return
	}
	file := weightsFile
	if _, sharded := c.folder.Sizes[indexFile]; sharded {
		file = indexFile
	}
	for name, want := range config.expected() {
		shape, ok := c.shapes[name]
		switch {
		case c.shapes == nil:
			return
		case !ok:
			c.add(file, "lacks the tensor %s of shape %v, which a %s model of this config.json has", shown(name), want, config.ModelType)
		case !slices.Equal(shape, want):
			c.add(file, "has the tensor %s with shape %v, and config.json wants %v", shown(name), shape, want)
		}
	}
}

// tokenizer checks that there is one, and that it has no token that the model
// has not.
func (c *checker) tokenizer(vocabulary int64) error {
	has := func(name string) bool { _, ok := c.folder.Sizes[name]; return ok }
	if has("tokenizer_config.json") {
		var anything map[string]json.RawMessage
		if err := c.fault("tokenizer_config.json", c.folder.readJSON("tokenizer_config.json", maxConfig, &anything)); err != nil {
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
	if err := c.folder.readJSON("tokenizer.json", maxTokenizer, &t); err != nil {
		return c.fault("tokenizer.json", err)
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
		c.add("tokenizer.json", "has no vocabulary at model.vocab")
	}
	if vocabulary > 0 && highest >= vocabulary {
		c.add("tokenizer.json", "has a token with number %d, and the model of config.json has vocab_size %d: they do not belong together", highest, vocabulary)
	}
	return nil
}

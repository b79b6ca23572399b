package weights

import (
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
)

const (
	adapterConfigFile = "adapter_config.json"
	adapterFile       = "adapter_model.safetensors"
	maxRank           = 1024
	maxTargets        = 16 << 10 // maximum length of the field target_modules in bytes
)

// An AdapterConfig is the content of adapter_config.json.
type AdapterConfig struct {
	Type  string  `json:"peft_type"`
	Rank  int     `json:"r"`
	Alpha float64 `json:"lora_alpha"`
	// modules that the adapter changes: a list of names, or a regular expression
	Targets json.RawMessage `json:"target_modules"`
}

// TargetModules returns the names of the modules that the adapter changes; nil if the config has a
// regular expression instead of a list.
func (a AdapterConfig) TargetModules() []string {
	var names []string
	if json.Unmarshal(a.Targets, &names) != nil {
		return nil // target_modules is a regular expression
	}
	return names
}

// ReadAdapterConfig returns the content of adapter_config.json in the directory f.
func (f Directory) ReadAdapterConfig() (AdapterConfig, error) {
	var a AdapterConfig
	return a, f.readJSON(adapterConfigFile, maxConfig, &a)
}

// CheckAdapter validates the files of a LoRA adapter in PEFT's layout. base and metadata are the
// configuration and the metadata of the adapter's base model. If the base model is of a known
// family, the shapes of the adapter's tensors must fit the base model. The report has the type,
// parameter count and context length of the base model.
func CheckAdapter(f Directory, base Config, metadata domain.ModelMetadata) (Report, error) {
	c := checker{dir: f, shapes: map[string][]int64{}, sizes: map[string]int64{}}
	if _, ok := f.Sizes[adapterConfigFile]; !ok && f.Sizes["config.json"] > 0 {
		c.add("kind", "the files are those of a full model: create the model with kind %s", domain.BaseModel)
		return c.report, nil
	}
	config, err := f.ReadAdapterConfig()
	readable := err == nil
	if err := c.invalidFile(adapterConfigFile, err); err != nil {
		return c.report, err
	}
	if readable {
		c.adapterConfig(config)
	}
	if _, ok := f.Sizes[adapterFile]; !ok {
		why := "is missing: upload the weights of the adapter"
		if f.Sizes["adapter_model.bin"] > 0 {
			why = "is missing: only safetensors are supported; convert adapter_model.bin"
		}
		c.add(adapterFile, "%s", why)
	} else if err := c.header(adapterFile, nil); err != nil {
		return c.report, err
	}
	if len(c.report.Violations) == 0 {
		c.pairs(&base)
	}
	report := c.finish()
	report.ModelMetadata = domain.ModelMetadata{ModelType: metadata.ModelType, ParameterCount: metadata.ParameterCount,
		ContextLength: metadata.ContextLength,
		Embedding:     metadata.Embedding, Vision: metadata.Vision, Precision: report.Precision, LoraRank: config.Rank,
		LoraTargets: config.TargetModules()}
	return report, nil
}

func (c *checker) adapterConfig(a AdapterConfig) {
	if a.Type != "LORA" {
		c.add(adapterConfigFile, "peft_type is %.64q, but must be LORA", a.Type)
	}
	if a.Rank < 1 || a.Rank > maxRank {
		c.add(adapterConfigFile, "r is %d, but must be 1 to %d", a.Rank, maxRank)
	}
	if !(a.Alpha > 0) {
		c.add(adapterConfigFile, "lora_alpha is %v, but must be above 0", a.Alpha)
	}
	if len(a.Targets) == 0 {
		c.add(adapterConfigFile, "target_modules is missing")
	}
	if len(a.Targets) > maxTargets {
		c.add(adapterConfigFile, "target_modules has %d bytes, but at most %d are allowed: list the last parts of module "+
			"names, or use one regular expression", len(a.Targets), maxTargets)
	}
}

var loraTensor = regexp.MustCompile(
	`^base_model\.model\.model\.layers\.(\d+)\.(self_attn\.[a-z]+_proj|mlp\.[a-z]+_proj)\.lora_([AB])\.weight$`)

// pairs checks the adapter's tensors. Each pair of matrices, lora_A of shape [r, in] and lora_B of
// shape [out, r], must fit each other, and the projection of the base model that they change, whose
// shape is [out, in].
func (c *checker) pairs(base *Config) {
	if len(c.shapes) == 0 {
		c.add(adapterFile, "has no tensors: upload the weights of the adapter")
	}
	projections := base.projections()
	ranks := map[string]int64{} // rank r of lora_A, by layer and projection
	names := make([]string, 0, len(c.shapes))
	for name := range c.shapes {
		names = append(names, name)
	}
	slices.Sort(names) // so that lora_A comes before lora_B of the same projection
	known := base.isKnownFamily() && len(base.invalidSettings()) == 0
	for _, name := range names {
		shape, parts := c.shapes[name], loraTensor.FindStringSubmatch(name)
		if parts == nil || !known {
			continue // the engine checks other tensors when it loads the adapter
		}
		layer, err := strconv.ParseInt(parts[1], 10, 64)
		want, ok := projections[parts[2]]
		switch {
		case err != nil || layer >= base.Layers:
			c.add(adapterFile, "has the tensor %s for a layer that the base model, with %d layers, does not have", quoted(name),
				base.Layers)
			continue
		case !ok:
			c.add(adapterFile, "has the tensor %s for a projection that the base model does not have", quoted(name))
			continue
		}
		pair := parts[1] + "." + parts[2]
		if parts[3] == "A" {
			if len(shape) != 2 || shape[1] != want[1] {
				c.add(adapterFile, "has the tensor %s with shape %v, but the base model requires [r %d]", quoted(name),
					shape, want[1])
			} else {
				ranks[pair] = shape[0]
			}
			continue
		}
		if _, other := c.shapes[strings.Replace(name, "lora_B", "lora_A", 1)]; !other {
			c.add(adapterFile, "has lora_B of %s but not lora_A", pair)
		}
		if rank, ok := ranks[pair]; ok && !slices.Equal(shape, []int64{want[0], rank}) || !ok &&
			(len(shape) != 2 || shape[0] != want[0]) {
			c.add(adapterFile, "has the tensor %s with shape %v, but the base model and lora_A require %s", quoted(name), shape,
				fmt.Sprintf("[%d r]", want[0]))
		}
		delete(ranks, pair)
	}
	for pair := range ranks {
		c.add(adapterFile, "has lora_A of %s but not lora_B", pair)
	}
}

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
	maxTargets        = 16 << 10 // bytes of target_modules
)

// An AdapterConfig is what an adapter_config.json says.
type AdapterConfig struct {
	Type    string          `json:"peft_type"`
	Rank    int             `json:"r"`
	Alpha   float64         `json:"lora_alpha"`
	Targets json.RawMessage `json:"target_modules"` // a list, or one pattern
}

// TargetModules are the projections that the adapter changes, when it lists them.
func (a AdapterConfig) TargetModules() []string {
	var names []string
	if json.Unmarshal(a.Targets, &names) != nil {
		return nil // a pattern, which names none
	}
	return names
}

// ReadAdapterConfig reads adapter_config.json.
func (f Folder) ReadAdapterConfig() (AdapterConfig, error) {
	var a AdapterConfig
	return a, f.readJSON(adapterConfigFile, maxConfig, &a)
}

// CheckAdapter reads the files of a LoRA adapter in PEFT's layout for a base of
// the given configuration and facts: its shapes must fit the base, where that
// is of a known family. Type, parameters and context are those of the base.
func CheckAdapter(f Folder, base Config, facts domain.ModelFacts) (Report, error) {
	c := checker{folder: f, shapes: map[string][]int64{}, sizes: map[string]int64{}}
	if _, ok := f.Sizes[adapterConfigFile]; !ok && f.Sizes["config.json"] > 0 {
		c.add("kind", "the files are those of a whole model: create the model with kind %s", domain.BaseModel)
		return c.report, nil
	}
	config, err := f.ReadAdapterConfig()
	readable := err == nil
	if err := c.fault(adapterConfigFile, err); err != nil {
		return c.report, err
	}
	if readable {
		c.adapterConfig(config)
	}
	if _, ok := f.Sizes[adapterFile]; !ok {
		why := "is missing"
		if f.Sizes["adapter_model.bin"] > 0 {
			why = "is missing: weights are read as safetensors alone; convert adapter_model.bin"
		}
		c.add(adapterFile, "%s", why)
	} else if err := c.header(adapterFile, nil); err != nil {
		return c.report, err
	}
	if len(c.report.Violations) == 0 {
		c.pairs(&base)
	}
	report := c.finish()
	report.ModelFacts = domain.ModelFacts{ModelType: facts.ModelType, ParameterCount: facts.ParameterCount, ContextLength: facts.ContextLength,
		Embedding: facts.Embedding, Precision: report.Precision, LoraRank: config.Rank, LoraTargets: config.TargetModules()}
	return report, nil
}

func (c *checker) adapterConfig(a AdapterConfig) {
	if a.Type != "LORA" {
		c.add(adapterConfigFile, "peft_type must be LORA")
	}
	if a.Rank < 1 || a.Rank > maxRank {
		c.add(adapterConfigFile, "r must be 1 to %d, is %d", maxRank, a.Rank)
	}
	if !(a.Alpha > 0) {
		c.add(adapterConfigFile, "lora_alpha must be above 0")
	}
	if len(a.Targets) == 0 {
		c.add(adapterConfigFile, "target_modules is missing")
	}
	if len(a.Targets) > maxTargets {
		c.add(adapterConfigFile, "target_modules has %d bytes, and may have %d: name the last parts of modules, or one pattern", len(a.Targets), maxTargets)
	}
}

var loraTensor = regexp.MustCompile(`^base_model\.model\.model\.layers\.(\d+)\.(self_attn\.[a-z]+_proj|mlp\.[a-z]+_proj)\.lora_([AB])\.weight$`)

// pairs holds each pair of matrices, A of shape [r, in] and B of [out, r],
// against the other and the base's projection [out, in].
func (c *checker) pairs(base *Config) {
	if len(c.shapes) == 0 {
		c.add(adapterFile, "holds no tensors")
	}
	projections := base.projections()
	ranks := map[string]int64{} // of each pair's matrix A, by what both begin with
	names := make([]string, 0, len(c.shapes))
	for name := range c.shapes {
		names = append(names, name)
	}
	slices.Sort(names) // A before B
	known := base.knows() && len(base.trouble()) == 0
	for _, name := range names {
		shape, parts := c.shapes[name], loraTensor.FindStringSubmatch(name)
		if parts == nil || !known {
			continue // other tensors than those of projections are an engine's to judge
		}
		layer, err := strconv.ParseInt(parts[1], 10, 64)
		want, ok := projections[parts[2]]
		switch {
		case err != nil || layer >= base.Layers:
			c.add(adapterFile, "has the tensor %s for a layer that the base, with %d layers, does not have", shown(name), base.Layers)
			continue
		case !ok:
			c.add(adapterFile, "has the tensor %s for a projection that the base does not have", shown(name))
			continue
		}
		pair := parts[1] + "." + parts[2]
		if parts[3] == "A" {
			if len(shape) != 2 || shape[1] != want[1] {
				c.add(adapterFile, "has the tensor %s with shape %v, and the base wants [r %d]", shown(name), shape, want[1])
			} else {
				ranks[pair] = shape[0]
			}
			continue
		}
		if _, other := c.shapes[strings.Replace(name, "lora_B", "lora_A", 1)]; !other {
			c.add(adapterFile, "has lora_B of %s and not lora_A", pair)
		}
		if rank, ok := ranks[pair]; ok && !slices.Equal(shape, []int64{want[0], rank}) || !ok && (len(shape) != 2 || shape[0] != want[0]) {
			c.add(adapterFile, "has the tensor %s with shape %v, and the base and its other half want %s", shown(name), shape, fmt.Sprintf("[%d r]", want[0]))
		}
		delete(ranks, pair)
	}
	for pair := range ranks {
		c.add(adapterFile, "has lora_A of %s and not lora_B", pair)
	}
}

package llama

import (
	"cmp"
	"encoding/json"
	"fmt"
	"path/filepath"

	"anneal/domain"
	"anneal/engines/embedded/safetensors"
)

const (
	adapterConfigFile = "adapter_config.json"
	adapterFile       = "adapter_model.safetensors"
	maxRank           = 1024
)

// baseHashKey is the key of Adapter.BaseHash in the metadata of adapterFile. PEFT ignores unknown
// metadata, but most of its versions reject unknown fields in adapter_config.json, where earlier
// versions of anneal wrote the hash.
const baseHashKey = "base_model_hash"

// adapterConfig has the supported fields of PEFT's adapter_config.json.
type adapterConfig struct {
	Type string `json:"peft_type"`
	Task string `json:"task_type"`
	Base string `json:"base_model_name_or_path"`
	// BaseHash is in adapters that earlier versions of anneal have saved. Save leaves it empty: see
	// baseHashKey.
	BaseHash      string          `json:"base_model_hash,omitempty"`
	Rank          int             `json:"r"`
	Alpha         float64         `json:"lora_alpha"`
	Dropout       float64         `json:"lora_dropout"`
	Targets       json.RawMessage `json:"target_modules"`
	Bias          string          `json:"bias"`
	RankStable    bool            `json:"use_rslora"`
	Decomposed    bool            `json:"use_dora"`
	FanInFanOut   bool            `json:"fan_in_fan_out"`
	Inference     bool            `json:"inference_mode"`
	SaveModules   []string        `json:"modules_to_save"`
	RankPattern   map[string]int  `json:"rank_pattern"`
	AlphaPattern  map[string]any  `json:"alpha_pattern"`
	LayersPattern any             `json:"layers_to_transform"`
}

// Save writes the adapter in PEFT's format to the directory dir, which must exist. dropout is
// recorded for a training that continues from the adapter.
func (a *Adapter) Save(dir string, dropout float64) error {
	names := []string{}
	for _, m := range a.Modules() {
		names = append(names, m.String())
	}
	targets, err := json.Marshal(names)
	if err != nil {
		return err
	}
	c := adapterConfig{
		Type: "LORA", Task: "CAUSAL_LM", Rank: a.Rank, Alpha: a.Alpha, Dropout: dropout,
		Targets: targets, Bias: "none", Inference: true, RankPattern: map[string]int{}, AlphaPattern: map[string]any{},
	}
	if err := writeJSON(filepath.Join(dir, adapterConfigFile), c); err != nil {
		return err
	}
	var metadata map[string]string
	if a.BaseHash != "" {
		metadata = map[string]string{baseHashKey: a.BaseHash}
	}
	return safetensors.WriteFile(filepath.Join(dir, adapterFile), a.tensors(), metadata)
}

// tensors returns the adapter's matrices with PEFT's names.
func (a *Adapter) tensors() []safetensors.Tensor {
	var out []safetensors.Tensor
	for i := range a.Layers {
		for _, m := range a.Modules() {
			nameA, nameB := pairNames(i, m)
			p := &a.Layers[i][m]
			out = append(out, tensorOf(nameA, p.A, safetensors.F32), tensorOf(nameB, p.B, safetensors.F32))
		}
	}
	return out
}

func pairNames(layer int, m Module) (a, b string) {
	prefix := fmt.Sprintf("base_model.model.model.layers.%d.%s.", layer, m.Path())
	return prefix + "lora_A.weight", prefix + "lora_B.weight"
}

// LoadAdapter loads the adapter in a PEFT directory, for a base model with configuration c. It
// returns FailedPrecondition if the adapter has unsupported features, or was trained on a base
// model with another hash than baseHash. A baseHash of "" accepts every adapter.
func LoadAdapter(dir, baseHash string, c Config) (*Adapter, error) {
	settings, err := readAdapterConfig(dir)
	if err != nil {
		return nil, err
	}
	file, err := safetensors.Open(filepath.Join(dir, adapterFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	trainedOn := cmp.Or(file.Metadata()[baseHashKey], settings.BaseHash)
	if err := (&Adapter{BaseHash: trainedOn}).Belongs(baseHash); err != nil {
		return nil, err
	}
	var modules []Module
	for m := range Modules {
		name, _ := pairNames(0, m)
		if _, ok := file.Lookup(name); ok {
			modules = append(modules, m)
		}
	}
	if n := len(file.Tensors()); len(modules) == 0 || n != 2*len(modules)*c.Layers {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"%s has %d tensors and adapts %d projections of layer 0: it must have lora_A and lora_B of the same projections "+
				"in all %d layers and nothing else",
			adapterFile, n, len(modules), c.Layers)
	}
	a := NewAdapter(c, settings.Rank, settings.Alpha, modules)
	a.BaseHash = trainedOn
	for _, t := range a.tensors() {
		if err := file.Read(t.Data, t.Name, t.Shape...); err != nil {
			return nil, err
		}
	}
	return a, nil
}

// Belongs returns FailedPrecondition if the adapter was trained on a base model with another hash
// than baseHash. It returns nil if one of the hashes is "", which means unknown.
func (a *Adapter) Belongs(baseHash string) error {
	if a.BaseHash == "" || baseHash == "" || a.BaseHash == baseHash {
		return nil
	}
	return domain.Errorf(domain.FailedPrecondition,
		"the adapter was trained on the base model %s, but this model is %s: load the adapter on its base model",
		a.BaseHash, baseHash)
}

// CheckAdapter returns an error if the adapter_config.json in a PEFT directory has unsupported
// features.
func CheckAdapter(dir string) error {
	_, err := readAdapterConfig(dir)
	return err
}

func readAdapterConfig(dir string) (adapterConfig, error) {
	data, err := readLimited(filepath.Join(dir, adapterConfigFile), maxConfigBytes)
	if err != nil {
		return adapterConfig{}, err
	}
	var c adapterConfig
	if err := json.Unmarshal(data, &c); err != nil {
		return c, domain.Errorf(domain.FailedPrecondition, "parse %s: %v", adapterConfigFile, err)
	}
	var v domain.Violations
	v.Require(c.Type == "LORA", "peft_type", "must be LORA, is %q", c.Type)
	v.Require(c.Rank >= 1 && c.Rank <= maxRank, "r", "must be 1 to %d, is %d", maxRank, c.Rank)
	v.Require(c.Alpha > 0, "lora_alpha", "must be above 0, is %g", c.Alpha)
	v.Require(c.Bias == "" || c.Bias == "none", "bias", "must be none, is %q", c.Bias)
	v.Require(!c.RankStable, "use_rslora", "must be false: the embedded engine does not support rank-stabilized LoRA")
	v.Require(!c.Decomposed, "use_dora", "must be false: the embedded engine does not support DoRA")
	v.Require(!c.FanInFanOut, "fan_in_fan_out", "must be false: the embedded engine does not support transposed weights")
	v.Require(len(c.SaveModules) == 0, "modules_to_save",
		"must be empty: the embedded engine supports no fully trained modules")
	v.Require(len(c.RankPattern) == 0, "rank_pattern",
		"must be empty: the embedded engine supports one rank for all modules")
	v.Require(len(c.AlphaPattern) == 0, "alpha_pattern",
		"must be empty: the embedded engine supports one lora_alpha for all modules")
	v.Require(c.LayersPattern == nil, "layers_to_transform",
		"must be null: the embedded engine applies an adapter to all layers")
	if err := v.Err(); err != nil {
		return c, domain.Errorf(domain.FailedPrecondition, "%s: %s", adapterConfigFile, err.Error())
	}
	return c, nil
}

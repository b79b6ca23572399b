package train

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"anneal/engines"
	"anneal/engines/embedded/safetensors"
)

// samplesFile is the name of a checkpoint's file with the samples of the current chunk. It is that
// of earlier versions of anneal, so that their checkpoints can be resumed.
const samplesFile = "answers.json"

// Names of a checkpoint's files with the chunks that were generated ahead, and with the policies of
// those that were not complete.
const (
	aheadFile    = "ahead.json"
	policiesFile = "policies.safetensors"
)

// A savedGeneration is a generation in a checkpoint. Its policy is in policiesFile if Complete is
// false.
type savedGeneration struct {
	Number   int                `json:"number"`
	Policy   int                `json:"policy"`
	Complete bool               `json:"complete"`
	Samples  []*Sample          `json:"samples,omitempty"`
	Metrics  map[string]float64 `json:"metrics,omitempty"`
	Counts   rolloutCounts      `json:"counts"`
	Rollouts []engines.Rollout  `json:"rollouts,omitempty"`
}

// saveSamples writes the samples of the current chunk to a checkpoint in dir, unless all steps of
// the chunk are completed, and the chunks that are generated ahead.
func (r *rollouts) saveSamples(dir string) error {
	if r.left() > 0 {
		data, err := json.Marshal(r.current.samples)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, samplesFile), data, 0o644); err != nil {
			return err
		}
	}
	if len(r.ahead) == 0 {
		return nil
	}
	return r.saveAhead(dir)
}

// saveAhead writes the generations to a checkpoint. It does not wait for them: of an incomplete
// one, it writes the policy.
func (r *rollouts) saveAhead(dir string) error {
	var all []savedGeneration
	var policies []safetensors.Tensor
	for _, g := range r.ahead {
		saved := savedGeneration{Number: g.number, Policy: g.policy, Complete: g.completed()}
		if saved.Complete {
			c := g.chunk
			saved.Samples, saved.Metrics, saved.Counts, saved.Rollouts = c.samples, c.metrics, c.counts, c.rollouts
		} else if name := policyName(g.policy); len(policies) == 0 || policies[len(policies)-1].Name != name {
			policies = append(policies, safetensors.Tensor{Data: g.weights,
				Info: safetensors.Info{Name: name, DType: safetensors.F32, Shape: []int{len(g.weights)}}})
		}
		all = append(all, saved)
	}
	data, err := json.Marshal(all)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, aheadFile), data, 0o644); err != nil || len(policies) == 0 {
		return err
	}
	return safetensors.WriteFile(filepath.Join(dir, policiesFile), policies, nil)
}

func policyName(policy int) string { return fmt.Sprintf("policy.%d", policy) }

// restoreSamples loads the samples of the current chunk, and the chunks that were generated ahead,
// from a checkpoint in dir.
func (r *rollouts) restoreSamples(dir string) error {
	c := &chunk{}
	if found, err := readJSON(filepath.Join(dir, samplesFile), &c.samples); err != nil {
		return err
	} else if found {
		r.planChunk(c, r.state.Chunk-1)
		r.current = c
	}
	var all []savedGeneration
	if _, err := readJSON(filepath.Join(dir, aheadFile), &all); err != nil {
		return err
	}
	for _, saved := range all {
		g, err := saved.restore(r, dir)
		if err != nil {
			return err
		}
		r.ahead = append(r.ahead, g)
	}
	return nil
}

// restore returns the generation from a checkpoint in dir.
func (saved savedGeneration) restore(r *rollouts, dir string) (*generation, error) {
	g := &generation{number: saved.Number, policy: saved.Policy}
	if saved.Complete {
		g.chunk = &chunk{samples: saved.Samples, metrics: saved.Metrics, counts: saved.Counts,
			rollouts: saved.Rollouts, policy: saved.Policy}
		r.planChunk(g.chunk, g.number)
		g.done = make(chan struct{})
		close(g.done)
		return g, nil
	}
	file, err := safetensors.Open(filepath.Join(dir, policiesFile))
	if err != nil {
		return nil, err
	}
	defer file.Close()
	g.weights = make([]float32, len(r.loop.Net.Trained()))
	return g, file.Read(g.weights, policyName(g.policy), len(g.weights))
}

// readJSON decodes a file into v. It reports whether the file exists.
func readJSON(path string, v any) (found bool, err error) {
	data, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	return true, json.Unmarshal(data, v)
}

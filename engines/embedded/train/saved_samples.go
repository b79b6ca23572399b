package train

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// samplesFile is the name of a checkpoint's file with the samples of the current chunk. It is that
// of earlier versions of anneal, so that their checkpoints can be resumed.
const samplesFile = "answers.json"

// saveSamples writes the samples of the current chunk to a checkpoint in dir, unless all steps of
// the chunk are completed.
func (r *rollouts) saveSamples(dir string) error {
	if r.left() == 0 {
		return nil
	}
	data, err := json.Marshal(r.current.samples)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, samplesFile), data, 0o644)
}

// restoreSamples loads the samples of the current chunk from a checkpoint in dir.
func (r *rollouts) restoreSamples(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, samplesFile))
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return err
	}
	c := &chunk{}
	if err := json.Unmarshal(data, &c.samples); err != nil {
		return err
	}
	r.planChunk(c, r.state.Chunk-1)
	r.current = c
	return nil
}

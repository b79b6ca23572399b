package train

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// answersFile is the file of a checkpoint that holds the samples of the current chunk.
const answersFile = "answers.json"

// saveAnswers adds the samples of the current chunk to a checkpoint, unless all steps of the chunk
// are completed.
func (r *rollouts) saveAnswers(dir string) error {
	if r.left() == 0 {
		return nil
	}
	data, err := json.Marshal(r.current.samples)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, answersFile), data, 0o644)
}

// restoreAnswers restores the current chunk at the step that the state records.
func (r *rollouts) restoreAnswers(dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, answersFile))
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

package train

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// answersFile holds the samples of the current chunk in a checkpoint.
const answersFile = "answers.json"

// saveAnswers adds the remaining samples of the current chunk to a checkpoint.
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

// restoreAnswers restores the current chunk at the position of the state.
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

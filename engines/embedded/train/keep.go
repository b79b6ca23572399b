package train

import (
	"encoding/json"
	"os"
	"path/filepath"
)

// answersFile holds the answers that a checkpoint's training is learning from.
const answersFile = "answers.json"

// saveAnswers adds the rest of a chunk that is not yet learnt to a checkpoint.
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

// restoreAnswers takes up where the state says that the training stands.
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
	r.cut(c, r.state.Chunk-1)
	r.current = c
	return nil
}

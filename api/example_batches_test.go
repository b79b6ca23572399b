package api

import (
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// createBatch executes the action "batch BATCH FILE", which creates a file of requests and a batch of
// them.
func (s *exampleStory) createBatch(name domain.Name, words []string) {
	s.Helper()
	file := domain.Name(words[0])
	s.do(domain.Intend(domain.BatchFiles, file, domain.CreateBatchFile{
		BatchFileSpec: domain.BatchFileSpec{Filename: "nightly-questions.jsonl", Purpose: domain.PurposeBatch,
			Files: domain.Files{Prefix: "batches/" + file.ID() + "/",
				Sizes: map[string]int64{"nightly-questions.jsonl": 48_213}}}}))
	s.do(createsBatch(name, file))
}

// answerBatch executes the action "answered BATCH TOTAL COMPLETED FAILED", which ends a batch.
func (s *exampleStory) answerBatch(name domain.Name, words []string) {
	s.Helper()
	completed, failed := int(s.number(words[1])), int(s.number(words[2]))
	row, ok := s.world.View().Batches.Get(name)
	require.True(s, ok)
	output := row.State.Input + "-output"
	s.do(domain.Intend(domain.BatchFiles, output, domain.CreateBatchFile{
		BatchFileSpec: domain.BatchFileSpec{Filename: name.ID() + "-output.jsonl", Purpose: domain.PurposeBatchOutput,
			Files: domain.Files{Prefix: "batches/" + output.ID() + "/", Sizes: map[string]int64{"output.jsonl": 131_072}}}}))
	for _, command := range []domain.Command[domain.Batch]{
		domain.StartBatch{Total: int(s.number(words[0])), Model: "support-assistant"},
		domain.FinalizeBatch{Completed: completed, Failed: failed},
		domain.EndBatch{BatchResults: domain.BatchResults{Output: output}, Completed: completed, Failed: failed},
	} {
		s.do(domain.Intend(domain.Batches, name, command))
	}
}

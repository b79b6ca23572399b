package domain_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"anneal/domain"
)

func randomBatchFileCommand(t *rapid.T, _ domain.BatchFile) domain.Command[domain.BatchFile] {
	spec := domain.BatchFileSpec{Filename: "r.jsonl", Files: someFiles(t),
		Purpose: pick(t, "purpose", domain.PurposeBatch, domain.PurposeBatchOutput, "", "poem")}
	return pick[domain.Command[domain.BatchFile]](t, "command", domain.CreateBatchFile{BatchFileSpec: spec},
		domain.RequestDeletion(domain.BatchFiles), domain.AbandonDeletion(domain.BatchFiles, "IN_USE"),
		domain.DeleteBatchFile{})
}

func someBatch() domain.BatchSpec {
	return domain.BatchSpec{Input: "accounts/a/batchFiles/f", Endpoint: "/v1/embeddings", Window: domain.BatchWindow,
		Metadata: map[string]string{"night": "3"}}
}

func randomBatchCommand(t *rapid.T, b domain.Batch) domain.Command[domain.Batch] {
	spec := someBatch()
	spec.Window = pick(t, "window", domain.BatchWindow, domain.BatchWindow, "1h")
	completed, failed := near(t, b.Counts.Completed), near(t, b.Counts.Failed)
	results := domain.BatchResults{Output: pick[domain.Name](t, "output", "", "accounts/a/batchFiles/o")}
	failures := []domain.BatchError{{Code: "invalid_json", Message: "is not JSON", Line: 3}}
	return pick[domain.Command[domain.Batch]](t, "command", domain.CreateBatch{BatchSpec: spec},
		domain.StartBatch{Total: 9, Model: "m"}, domain.StartBatch{Total: 9, Model: "m"},
		domain.ReportBatch{Completed: completed, Failed: failed},
		domain.FinalizeBatch{Completed: completed, Failed: failed},
		domain.FinalizeBatch{Completed: completed, Failed: failed, Overdue: true}, domain.CancelBatch{},
		domain.EndBatch{BatchResults: results, Completed: completed, Failed: failed},
		domain.EndBatch{BatchResults: results, Completed: completed, Failed: failed},
		domain.FailBatch{Failures: failures}, domain.RemoveBatch{})
}

// TestBatchStates checks that the commands lead to each state, and that a batch refers to its input
// file until it ends.
func TestBatchStates(t *testing.T) {
	created := []domain.Command[domain.Batch]{domain.CreateBatch{BatchSpec: someBatch(), CreatedBy: "k"}}
	started := append(created, domain.StartBatch{Total: 3, Model: "m"})
	end := domain.EndBatch{BatchResults: domain.BatchResults{Output: "accounts/a/batchFiles/o"}, Completed: 2, Failed: 1}
	for state, commands := range map[string][]domain.Command[domain.Batch]{
		domain.BatchValidating:      created,
		domain.BatchInProgress:      started,
		domain.BatchFinalizingState: append(started[:2:2], domain.FinalizeBatch{Completed: 2, Failed: 1}),
		domain.BatchCompletedState:  append(started[:2:2], domain.FinalizeBatch{Completed: 2, Failed: 1}, end),
		domain.BatchExpiredState: append(started[:2:2], domain.FinalizeBatch{Completed: 2, Failed: 1, Overdue: true},
			end),
		domain.BatchCancellingState: append(created[:1:1], domain.CancelBatch{}),
		domain.BatchCancelledState:  append(started[:2:2], domain.CancelBatch{}, end),
		domain.BatchFailedState:     append(created[:1:1], domain.FailBatch{Failures: []domain.BatchError{{Code: "x"}}}),
	} {
		t.Run(state, func(t *testing.T) {
			var b domain.Batch
			for _, command := range commands {
				event, err := command.Decide(b, noon)
				require.NoError(t, err)
				event.Evolve(&b)
			}
			require.Equal(t, state, b.State)
			require.Equal(t, noon.Add(24*time.Hour), b.ExpireTime)
			if b.Live() {
				require.Equal(t, []string{"accounts/a/batchFiles/f"}, b.References(""))
				return
			}
			require.Empty(t, b.References(""))
			_, err := domain.FinalizeBatch{}.Decide(b, noon)
			require.Error(t, err)
		})
	}
}

// TestBatchFieldsAreChecked checks that one error names every invalid field of a batch.
func TestBatchFieldsAreChecked(t *testing.T) {
	_, err := domain.CreateBatch{BatchSpec: domain.BatchSpec{Endpoint: "/v1/responses", Window: "1h"}}.
		Decide(domain.Batch{}, noon)
	for _, field := range []string{"endpoint", "completion_window", "input_file_id"} {
		require.ErrorContains(t, err, field)
	}
}

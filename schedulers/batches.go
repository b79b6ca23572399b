package schedulers

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Batches removes each batch domain.EndedBatchesStay after its end, and fails a batch whose input
// file was deleted before the batch was recorded.
type Batches struct{}

// Name implements Scheduler.
func (Batches) Name() string { return "batches" }

// Plan implements Scheduler.
func (Batches) Plan(v *projections.View, now time.Time) Plan {
	var plan Plan
	for row := range v.Batches.All() {
		b := &row.State
		if b.Live() {
			if lost := lostTo(v.Lost(row.Name, b), "then create another batch"); lost != "" {
				plan.add(domain.Intend(domain.Batches, row.Name, domain.Command[domain.Batch](domain.FailBatch{
					Failures: []domain.BatchError{{Code: "file_not_found", Message: lost}}})))
			}
			continue
		}
		if due := b.EndTime.Add(domain.EndedBatchesStay); due.After(now) {
			plan.planAgainAt(due)
		} else {
			plan.add(domain.Intend(domain.Batches, row.Name, domain.Command[domain.Batch](domain.RemoveBatch{})))
		}
	}
	return plan
}

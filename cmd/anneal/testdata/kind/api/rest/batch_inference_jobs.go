package rest

import (
	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
)

// BatchInferenceJob is the API representation of a batch inference job.
type BatchInferenceJob struct {
	Name string `json:"name" api:"output"`
	domain.BatchInferenceSpec
	JobReport
}

var batchInferenceJobs = &resource[domain.BatchInferenceJob, BatchInferenceJob]{
	kind: domain.BatchInferenceJobs, noun: "batch inference job", requires: []string{"dataset", "model"},
	idParam: "batchInferenceJobId", reads: request.Read, writes: request.Write,
	fields: fieldsOf[BatchInferenceJob](),
	render: func(v *projections.View, row *projections.Row[domain.BatchInferenceJob], out *BatchInferenceJob) {
		*out = BatchInferenceJob{Name: string(row.Name), BatchInferenceSpec: row.State.BatchInferenceSpec,
			JobReport: reportOf(v, row, &row.State)}
	},
	create: func(c *call, q *creation[BatchInferenceJob]) (plan[domain.BatchInferenceJob, BatchInferenceJob], error) {
		return plan[domain.BatchInferenceJob, BatchInferenceJob]{command: domain.CreateBatchInferenceJob{
			BatchInferenceSpec: q.given.BatchInferenceSpec, CreatedBy: string(c.Principal.Key), Deadline: jobDeadline(c),
		}}, nil
	},
	remove: removeJob[domain.BatchInferenceJob](domain.BatchInferenceJobs),
}

var _ = register(batchInferenceJobs.operations, jobOperations(batchInferenceJobs))

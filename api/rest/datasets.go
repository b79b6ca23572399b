package rest

import (
	"cmp"
	"time"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Dataset is the wire type of a dataset.
type Dataset struct {
	Name string `json:"name" api:"output"`
	domain.DatasetSpec
	CreateTime          *time.Time    `json:"createTime,omitempty" api:"output"`
	UpdateTime          *time.Time    `json:"updateTime,omitempty" api:"output"`
	State               string        `json:"state" api:"output"`
	Status              domain.Status `json:"status" api:"output"`
	CreatedBy           string        `json:"createdBy,omitempty" api:"output"`
	EstimatedTokenCount domain.Count  `json:"estimatedTokenCount" api:"output"`
	AverageTurnCount    int           `json:"averageTurnCount" api:"output"`
	RowShape            string        `json:"rowShape,omitempty" api:"output"`
	// Export describes the newest export of the dataset's files.
	Export *DatasetExport `json:"export,omitempty" api:"output"`
}

const formatUnspecified = "FORMAT_UNSPECIFIED"

var datasets = &resource[domain.Dataset, Dataset]{
	kind: domain.Datasets, noun: "dataset", wrapper: "dataset", idParam: "datasetId",
	extra: []string{"sourceDatasetId", "filter"},
	reads: request.Read, writes: request.Write, named: true,
	fields: storedFieldsOf[domain.Dataset, Dataset]("name", "displayName", "exampleCount", "sourceJobName", "externalUrl",
		"credentialsSecret", "evaluationResult", "transformed", "splitted", "evalProtocol", "createTime", "updateTime",
		"state", "estimatedTokenCount",
		"averageTurnCount"),
	computed: computedOfDatasets,
	creator:  func(d *domain.Dataset) string { return d.CreatedBy },
	dependent: map[string]func(*projections.Row[domain.Dataset]) bool{
		"status": func(row *projections.Row[domain.Dataset]) bool { return row.State.Filling() }},
	render: func(v *projections.View, row *projections.Row[domain.Dataset], out *Dataset) {
		d := &row.State
		*out = Dataset{Name: string(row.Name), DatasetSpec: d.DatasetSpec, CreateTime: wire.TimestampOf(&row.CreateTime),
			UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State:      d.State, Status: d.Status, CreatedBy: creatorOf(v, d.CreatedBy),
			EstimatedTokenCount: d.EstimatedTokenCount, AverageTurnCount: d.AverageTurnCount}
		for _, compute := range computedOfDatasets {
			compute(row, out)
		}
		// v is nil if render is called to merge an update into the stored fields
		if v != nil && d.Upload > 0 && !hasOrigin(d.DatasetSpec) {
			out.UserUploaded = &struct{}{}
		}
		if d.State == domain.DatasetUploading && d.From == nil {
			out.Status = upload.AwaitsFiles(out.Status)
		}
		if v != nil && d.Filling() {
			out.Status.Message += fillProgress(v, row.Name)
		}
	},
	create: func(c *call, q *creation[Dataset]) (plan[domain.Dataset, Dataset], error) {
		v := &q.p.Violations
		derived := q.extra["sourceDatasetId"] != "" || q.given.Transformed != nil || q.given.Splitted != nil
		from, err := derive(c, v, q.given, q.extra)
		switch {
		case !derived:
			requireOrigin(c, v, q.given, "dataset.")
			err = importing(c, v, q.given)
		case from == nil:
			from = &domain.Derivation{} // a placeholder: the request has violations, so it creates no dataset
		}
		q.given.Format = wire.Specified(q.given.Format)
		return plan[domain.Dataset, Dataset]{command: domain.CreateDataset{DatasetSpec: q.given.DatasetSpec,
			CreatedBy: string(c.Principal.Key), From: from}}, err
	},
	update: func(c *call, q *update[domain.Dataset, Dataset]) (plan[domain.Dataset, Dataset], error) {
		if q.old.From == nil { // an update cannot change the origin of a derived dataset
			requireOrigin(c, &q.p.Violations, q.given, "")
		}
		if err := requireCredentials(c, &q.p.Violations, "credentialsSecret", q.given.CredentialsSecret); err != nil {
			return plan[domain.Dataset, Dataset]{}, err
		}
		q.merged.Format = wire.Specified(q.merged.Format)
		return plan[domain.Dataset, Dataset]{command: domain.UpdateDataset{DatasetSpec: q.merged.DatasetSpec}}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Dataset], _ *request.Params) (domain.Command[domain.Dataset],
		error) {
		return domain.DeleteDataset{}, nil
	},
}

// computedOfDatasets has a function for each field of a dataset that is computed from its row alone:
// see resource.computed.
var computedOfDatasets = map[string]func(row *projections.Row[domain.Dataset], out *Dataset){
	"format": func(row *projections.Row[domain.Dataset], out *Dataset) {
		out.Format = cmp.Or(row.State.Format, formatUnspecified)
	},
	"rowShape": func(row *projections.Row[domain.Dataset], out *Dataset) { out.RowShape = row.State.Shape },
	"export":   func(row *projections.Row[domain.Dataset], out *Dataset) { out.Export = exportOf(row.State.Export) },
}

var _ = register(datasets.operations, datasetOperations)

func hasOrigin(s domain.DatasetSpec) bool {
	return s.UserUploaded != nil || s.EvaluationResult != nil || s.Transformed != nil || s.Splitted != nil ||
		s.EvalProtocol != nil
}

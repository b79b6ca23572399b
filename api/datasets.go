package api

import (
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
)

// Dataset is a dataset on the wire.
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

	from *domain.Derivation // that a create asks for
}

const formatUnspecified = "FORMAT_UNSPECIFIED"

var datasets = &resource[domain.Dataset, Dataset]{
	kind: domain.Datasets, noun: "dataset", wrapper: "dataset", idParam: "datasetId", extra: []string{"sourceDatasetId", "filter"},
	reads: request.Read, writes: request.Write, named: true,
	fields: storedFieldsOf[domain.Dataset, Dataset]("name", "displayName", "exampleCount", "sourceJobName", "externalUrl", "evaluationResult",
		"transformed", "splitted", "evalProtocol", "createTime", "updateTime", "state", "createdBy", "estimatedTokenCount", "averageTurnCount"),
	render: func(v *projections.View, row *projections.Row[domain.Dataset], out *Dataset) {
		d := &row.State
		*out = Dataset{Name: string(row.Name), DatasetSpec: d.DatasetSpec, CreateTime: wire.TimestampOf(&row.CreateTime), UpdateTime: wire.TimestampOf(&row.UpdateTime),
			State: d.State, Status: d.Status, CreatedBy: d.CreatedBy, EstimatedTokenCount: d.EstimatedTokenCount, AverageTurnCount: d.AverageTurnCount, RowShape: d.Shape}
		if out.Format == "" {
			out.Format = formatUnspecified
		}
		if v != nil && d.Upload > 0 && !hasOrigin(d.DatasetSpec) { // an update without a view works on what was given
			out.UserUploaded = &struct{}{}
		}
		if d.State == domain.DatasetUploading && d.From == nil {
			out.Status = waitsForFiles(out.Status)
		}
		if v != nil && d.Filling() {
			out.Status.Message += fillProgress(v, row.Name)
		}
	},
	prepare: func(c *call, name domain.Name, given *Dataset, extra map[string]string, v *domain.Violations) error {
		if row, exists := c.View().Datasets.Get(name); extra["sourceDatasetId"] == "" && (!exists || row.State.From == nil) { // what is derived keeps its origin
			c.wantOrigin(v, given, extra != nil)
		}
		return c.derive(v, given, extra)
	},
	create: func(c *call, _ domain.Name, given *Dataset) domain.Command[domain.Dataset] {
		given.Format = wire.Specified(given.Format)
		return domain.CreateDataset{DatasetSpec: given.DatasetSpec, CreatedBy: string(c.Principal.Key), From: given.from}
	},
	update: func(_ domain.Dataset, merged, _ *Dataset, _ wire.Mask) (domain.Command[domain.Dataset], error) {
		merged.Format = wire.Specified(merged.Format)
		return domain.UpdateDataset{DatasetSpec: merged.DatasetSpec}, nil
	},
	remove: func(c *call, row *projections.Row[domain.Dataset], _ *request.Params) (domain.Command[domain.Dataset], error) {
		return domain.DeleteDataset{}, nil
	},
}

func hasOrigin(s domain.DatasetSpec) bool {
	return s.UserUploaded != nil || s.EvaluationResult != nil || s.Transformed != nil || s.Splitted != nil || s.EvalProtocol != nil
}

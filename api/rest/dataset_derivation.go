package rest

import (
	"cmp"
	"errors"
	"fmt"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// An origin is the dataset from which a new dataset is derived. A request names it in
// sourceDatasetId and filter of the body, or in the object transformed or splitted of the dataset.
type origin struct {
	field   string // path of the field that names the source dataset
	ref     string // ID or resource name of the source dataset
	filters string // path of the field with the filter
	filter  string
}

// originOf returns the origin of a new dataset; false for a dataset whose rows will be uploaded or
// imported. It adds a violation for an object transformed or splitted that names no source. extra
// has the fields of the body besides the dataset.
func originOf(v *domain.Violations, given *Dataset, extra map[string]string) (origin, bool) {
	named := origin{"sourceDatasetId", extra["sourceDatasetId"], "filter", extra["filter"]}
	const required = "is required: the dataset from which the rows come"
	switch {
	case named.ref != "":
		return named, true
	case given.Transformed != nil:
		o := origin{"dataset.transformed.sourceDatasetId", given.Transformed.SourceDatasetID, "dataset.transformed.filter",
			given.Transformed.Filter}
		v.Require(o.ref != "", o.field, required)
		v.Require(named.filter == "", "filter",
			"cannot be combined with dataset.transformed: set dataset.transformed.filter instead")
		return o, true
	case given.Splitted != nil:
		o := origin{"dataset.splitted.sourceDatasetId", given.Splitted.SourceDatasetID, "filter", named.filter}
		v.Require(o.ref != "", o.field, required)
		return o, true
	}
	v.Require(named.filter == "", "filter", "selects rows of another dataset: name that dataset in sourceDatasetId")
	return origin{}, false
}

// derive returns how a new dataset is derived from its origin: as the rows that match a filter, a
// part of a split, or a copy of all rows. It also sets the fields of given that state the origin.
// It returns nil if the dataset has no origin, or after adding violations. extra has the fields of
// the body besides the dataset.
func derive(c *call, v *domain.Violations, given *Dataset, extra map[string]string) (*domain.Derivation, error) {
	from, derived := originOf(v, given, extra)
	if !derived {
		return nil, nil
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	var source *projections.Row[domain.Dataset]
	if from.ref != "" {
		source = requireSource(c, v, from)
	}
	if from.filter != "" {
		var invalid *domain.Error
		if _, err := query.CompileRowFilter(from.filter); errors.As(err, &invalid) {
			for _, one := range invalid.Violations {
				one.Field = from.filters
				*v = append(*v, one)
			}
		}
	}
	if s := given.Splitted; s != nil && s.Fraction == 0 && source != nil {
		s.Fraction = domain.CarvedFraction(source.State.ExampleCount)
	}
	given.checkDerived(v, from, source)
	if source == nil || len(*v) > 0 {
		return nil, nil
	}
	// checks that the quota is not exhausted; the size of the rows is not known yet
	if err := c.Uploads.Reserve(c.Call, 1); err != nil {
		return nil, err
	}
	derivation := &domain.Derivation{Source: source.Name, Prefix: source.State.Files.Prefix, Filter: from.filter}
	if s := given.Splitted; s != nil {
		derivation.Split = domain.SplitOf(source.State.ExampleCount, s.Fraction, s.Seed, s.Rest)
		s.SourceDatasetID = source.Name.ID()
		return derivation, nil
	}
	given.Transformed = &domain.DatasetTransformed{SourceDatasetID: source.Name.ID(), Filter: from.filter,
		OriginalFormat: source.State.Format}
	return derivation, nil
}

// requireSource returns the READY dataset of the account that an origin names. If there is none, it
// adds a violation and returns nil.
func requireSource(c *call, v *domain.Violations, from origin) *projections.Row[domain.Dataset] {
	name, ok := domain.ParseName(from.ref, domain.Datasets.Collection)
	if !ok {
		name = domain.NewName(c.Account, domain.Datasets.Collection, from.ref)
	}
	row, exists := c.View().Datasets.Get(name)
	switch {
	case !exists || name.Account() != c.Account:
		v.Add(from.field, "%s is not a dataset of accounts/%s: give the ID of an existing dataset", wire.Quote(from.ref),
			c.Account)
	case row.State.State != domain.DatasetReady:
		v.Add(from.field, "%s is %s, not READY (%s): upload its rows, or wait until it is READY", name, row.State.State,
			cmp.Or(row.State.Status.Message, "nothing was uploaded"))
	default:
		return row
	}
	return nil
}

// checkDerived adds a violation for each field that a dataset with an origin must not set. source
// is the row of the source dataset; nil if it does not exist.
func (d *Dataset) checkDerived(v *domain.Violations, from origin, source *projections.Row[domain.Dataset]) {
	const known, elsewhere = "is computed from the rows: leave it out when sourceDatasetId is set",
		"contradicts sourceDatasetId: leave it out"
	byObject := from.field != "sourceDatasetId"
	v.Require(wire.Specified(d.Format) == "", "dataset.format", known)
	v.Require(d.ExampleCount == 0, "dataset.exampleCount", known)
	v.Require(d.UserUploaded == nil, "dataset.userUploaded", elsewhere)
	v.Require(d.EvaluationResult == nil, "dataset.evaluationResult", elsewhere)
	v.Require(d.EvalProtocol == nil, "dataset.evalProtocol", elsewhere)
	v.Require(d.Transformed == nil || byObject, "dataset.transformed", elsewhere)
	v.Require(d.SourceJobName == "", "dataset.sourceJobName", elsewhere)
	v.Require(d.ExternalURL == "", "dataset.externalUrl", elsewhere)
	v.Require(d.CredentialsSecret == "", "dataset.credentialsSecret", elsewhere)
	if t := d.Transformed; t != nil && byObject {
		v.Require(d.Splitted == nil, "dataset.splitted", "cannot be combined with dataset.transformed: create the "+
			"transformed dataset first, then split that dataset")
		format := wire.Specified(t.OriginalFormat)
		v.Require(format == "" || source == nil || format == source.State.Format, "dataset.transformed.originalFormat",
			"must be the format of the source dataset: leave it out, because the server knows the format")
		return
	}
	s := d.Splitted
	if s == nil {
		return
	}
	v.Require(from.filter == "", "filter",
		"cannot be combined with dataset.splitted: create the filtered dataset first, then split that dataset")
	v.Require(s.Fraction >= 0 && s.Fraction < 1, "dataset.splitted.fraction",
		"must be above 0 and below 1, because it is the fraction of the rows that are held out")
	v.Require(s.SourceDatasetID == "" || byObject, "dataset.splitted.sourceDatasetId",
		"cannot be combined with sourceDatasetId of the request, which names the source already: leave it out here")
}

// fillProgress returns a suffix for the status message of a dataset that states the progress of its
// derivation. It returns "" if another control plane runs the derivation, or if none is running.
func fillProgress(v *projections.View, name domain.Name) string {
	progress, known := v.Live.Progress(name)
	if !known {
		return ""
	}
	return fmt.Sprintf(": %d of %d rows read, %d %%", progress.Step, progress.Steps, progress.Percent())
}

// requireOrigin adds a violation for each dataset or job that given names as its origin, but that
// does not exist in the account. prefix is the path of the dataset in the request's body.
func requireOrigin(c *call, v *domain.Violations, given *Dataset, prefix string) {
	source := func(field, id string) {
		if id == "" {
			return // the command's Decide rejects a missing ID
		}
		name, ok := domain.ParseName(id, domain.Datasets.Collection)
		if !ok {
			name = domain.NewName(c.Account, domain.Datasets.Collection, id)
		}
		_, exists := c.View().Datasets.Get(name)
		v.Require(exists && name.Account() == c.Account, prefix+field,
			"%s is not a dataset of accounts/%s: give the ID of an existing dataset, or leave it out", wire.Quote(id), c.Account)
	}
	if given.Transformed != nil {
		source("transformed.sourceDatasetId", given.Transformed.SourceDatasetID)
	}
	if given.Splitted != nil {
		source("splitted.sourceDatasetId", given.Splitted.SourceDatasetID)
	}
	if given.SourceJobName != "" {
		_, exists := c.View().Job(domain.Name(given.SourceJobName))
		v.Require(exists && domain.Name(given.SourceJobName).Account() == c.Account, prefix+"sourceJobName",
			"%s is not a job of accounts/%s: give the resource name of an existing job, or leave it out",
			wire.Quote(given.SourceJobName), c.Account)
	}
}

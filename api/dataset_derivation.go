package api

import (
	"cmp"
	"errors"
	"fmt"

	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/query"
)

// derive reads what a create says of the rows that the new dataset shall have:
// sourceDatasetId with a filter, or with dataset.splitted, or alone for a copy.
// It tells the dataset where it comes from.
func (c *call) derive(v *domain.Violations, given *Dataset, extra map[string]string) error {
	ref, filter := extra["sourceDatasetId"], extra["filter"]
	if ref == "" {
		v.Require(filter == "", "filter", "chooses among the rows of another dataset: name that one in sourceDatasetId")
		return nil
	}
	if err := c.RequireActive(c.Account); err != nil {
		return err
	}
	source := c.wantSource(v, ref)
	if filter != "" {
		var wrong *domain.Error
		if _, err := query.CompileRowFilter(filter); errors.As(err, &wrong) {
			*v = append(*v, wrong.Violations...)
		}
	}
	given.checkDerived(v, filter)
	if source == nil || len(*v) > 0 {
		return nil
	}
	if err := c.room(1); err != nil { // how many rows it will have is not known yet
		return err
	}
	given.from = &domain.Derivation{Source: source.Name, Folder: source.State.Files.Folder, Filter: filter}
	if s := given.Splitted; s != nil {
		given.from.Split = domain.SplitOf(source.State.ExampleCount, s.Fraction, s.Seed, s.Rest)
		s.SourceDatasetID = source.Name.ID()
		return nil
	}
	given.Transformed = &domain.DatasetTransformed{SourceDatasetID: source.Name.ID(), Filter: filter, OriginalFormat: source.State.Format}
	return nil
}

// wantSource requires a READY dataset of the account, named by its ID or whole
// name.
func (c *call) wantSource(v *domain.Violations, ref string) *projections.Row[domain.Dataset] {
	name, ok := domain.ParseName(ref, domain.Datasets.Collection)
	if !ok {
		name = domain.NewName(c.Account, domain.Datasets.Collection, ref)
	}
	row, exists := c.View().Datasets.Get(name)
	switch {
	case !exists || name.Account() != c.Account:
		v.Add("sourceDatasetId", "names no dataset of accounts/%s: give the ID of one that is there", c.Account)
	case row.State.State != domain.DatasetReady:
		v.Add("sourceDatasetId", "names a dataset that is %s (%s): wait until it is READY", row.State.State, cmp.Or(row.State.Status.Message, "nothing was uploaded"))
	default:
		return row
	}
	return nil
}

// checkDerived names what a dataset that is made from another may not say.
func (d *Dataset) checkDerived(v *domain.Violations, filter string) {
	const known, elsewhere = "is told by the rows: leave it out beside sourceDatasetId", "is not where these rows come from: leave it out beside sourceDatasetId"
	v.Require(wire.Specified(d.Format) == "", "dataset.format", known)
	v.Require(d.ExampleCount == 0, "dataset.exampleCount", known)
	v.Require(d.UserUploaded == nil, "dataset.userUploaded", elsewhere)
	v.Require(d.EvaluationResult == nil, "dataset.evaluationResult", elsewhere)
	v.Require(d.EvalProtocol == nil, "dataset.evalProtocol", elsewhere)
	v.Require(d.Transformed == nil, "dataset.transformed", elsewhere)
	v.Require(d.SourceJobName == "", "dataset.sourceJobName", elsewhere)
	s := d.Splitted
	if s == nil {
		return
	}
	v.Require(filter == "", "filter", "cannot be given beside dataset.splitted: make the filtered dataset first, then split that")
	v.Require(s.Fraction > 0 && s.Fraction < 1, "dataset.splitted.fraction", "must be above 0 and below 1: the share of the rows that is held out")
	v.Require(s.SourceDatasetID == "", "dataset.splitted.sourceDatasetId", "is the sourceDatasetId beside dataset: leave it out here")
}

// fillProgress is how far the rows of a dataset are, as a deriver of this
// control plane told last; "" when none did.
func fillProgress(v *projections.View, name domain.Name) string {
	progress, known := v.Live.Progress(name)
	if !known {
		return ""
	}
	return fmt.Sprintf(": %d of %d rows read, %d %%", progress.Step, progress.Steps, progress.Percent())
}

// wantOrigin requires that what a dataset is said to come from is there.
func (c *call) wantOrigin(v *domain.Violations, given *Dataset, create bool) {
	prefix := ""
	if create {
		prefix = "dataset."
	}
	source := func(field, id string) {
		if id == "" {
			return // the decision says whether it may be left out
		}
		name, ok := domain.ParseName(id, domain.Datasets.Collection)
		if !ok {
			name = domain.NewName(c.Account, domain.Datasets.Collection, id)
		}
		_, exists := c.View().Datasets.Get(name)
		v.Require(exists && name.Account() == c.Account, prefix+field, "names no dataset of accounts/%s: give the ID of one that is there, or leave it out", c.Account)
	}
	if given.Transformed != nil {
		source("transformed.sourceDatasetId", given.Transformed.SourceDatasetID)
	}
	if given.Splitted != nil {
		source("splitted.sourceDatasetId", given.Splitted.SourceDatasetID)
	}
	if given.SourceJobName != "" {
		_, exists := c.View().Job(domain.Name(given.SourceJobName))
		v.Require(exists && domain.Name(given.SourceJobName).Account() == c.Account, prefix+"sourceJobName", "names no job of accounts/%s: give the whole name of one that is there, or leave it out", c.Account)
	}
}

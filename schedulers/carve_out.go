package schedulers

import (
	"fmt"
	"hash/fnv"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A job with evalAutoCarveout gets two derived datasets before its first attempt: an evaluation
// split, and the remaining rows for training. The datasets are created only after an event of the
// job (see domain.PrepareInput) names them, so that no dataset exists without a job that names it.
// The datasets stay when the job is deleted.

// splits returns the names of the two datasets that were derived for the job. It returns nil when
// there are none, or when one of them is unusable and no attempt has started, so that two new ones
// can be created.
func (j job) splits(v *projections.View) *domain.JobInputs {
	in := j.Life.Inputs
	if in != nil && j.Life.Attempt == 0 && (unusable(v, in.Train) != nil || unusable(v, in.Evaluation) != nil) {
		return nil
	}
	return in
}

// unusable returns why a derived dataset will never have rows; nil when it has rows, or its rows
// are being derived.
func unusable(v *projections.View, name domain.Name) *domain.Error {
	row, ok := v.Datasets.Get(name)
	switch {
	case !ok:
		return domain.Errorf(domain.FailedPrecondition, "%s was deleted: resume the job to create the dataset again", name)
	case row.State.FillFailed():
		return domain.Errorf(domain.FailedPrecondition,
			"the rows of %s could not be derived (%s): correct the cause, then resume the job", name,
			row.State.Status.Message)
	}
	return nil
}

// needsCarveOut reports whether the job's evaluation split must still be created. It is false for a
// job whose first attempt an earlier version of anneal started without an evaluation split; then
// the trainer splits the rows.
func (j job) needsCarveOut(v *projections.View) bool {
	return j.Life.Attempt == 0 && j.carvedDataset() != "" && j.splits(v) == nil
}

// carvedDataset returns the dataset whose rows are held out for evaluation; "" if the job holds out
// none.
func (j job) carvedDataset() string {
	if spec := j.spec(); spec.AutoCarveout {
		return spec.Dataset
	}
	return ""
}

// data returns the names of the datasets that an attempt trains on and is evaluated on: the splits
// of the job if there are any, otherwise dataset and evaluation.
func (j job) data(v *projections.View, dataset, evaluation string) (string, string) {
	if in := j.splits(v); in != nil {
		return string(in.Train), string(in.Evaluation)
	}
	return dataset, evaluation
}

// await returns the intent that makes a trainer job wait for its next train step.
func await(j job) domain.Intent {
	return domain.Intend(domain.TrainerJobs, j.Name, domain.Command[domain.TrainerJob](domain.AwaitStep{}))
}

// carveOut returns the intent that records the names of the two datasets that will be derived for a
// job.
func carveOut(v *projections.View, j job) domain.Intent {
	return domain.IntendJob(j.Name, domain.PrepareInput{Inputs: freeNames(v, j)})
}

// createSplit returns the intent that creates one of the two datasets derived for a job: the
// remaining rows of source if rest is true, otherwise the evaluation split. The seed of the split
// depends only on the job's name.
func createSplit(j job, name domain.Name, rest bool, source *projections.Row[domain.Dataset]) domain.Intent {
	hash := fnv.New32a()
	hash.Write([]byte(j.Name))
	side := domain.Split{Held: domain.CarveOut(source.State.ExampleCount), Of: source.State.ExampleCount,
		Seed: int(hash.Sum32() & domain.MaxSeed), Rest: rest}
	return domain.Intend(domain.Datasets, name, domain.CreateDataset{CreatedBy: j.Life.CreatedBy,
		DatasetSpec: domain.DatasetSpec{SourceJobName: string(j.Name), Splitted: side.Origin(source.Name)},
		From:        &domain.Derivation{Source: source.Name, Prefix: source.State.Files.Prefix, Split: &side}})
}

// isSplit reports whether d is one of the two datasets that were derived from dataset for the job:
// the remaining rows if rest is true, otherwise the evaluation split.
func isSplit(d *domain.Dataset, j job, dataset string, rest bool) bool {
	from := d.From
	return d.SourceJobName == string(j.Name) && from != nil && string(from.Source) == dataset && from.Split != nil &&
		from.Split.Rest == rest
}

// freeNames returns two unused dataset names: the job's ID with the suffixes -train and -eval,
// followed by a number, the same for both, if one of the names is used.
func freeNames(v *projections.View, j job) domain.JobInputs {
	for n := 1; ; n++ {
		number := ""
		if n > 1 {
			number = fmt.Sprintf("-%d", n)
		}
		in := domain.JobInputs{Train: datasetOf(j, "-train"+number), Evaluation: datasetOf(j, "-eval"+number)}
		_, train := v.Datasets.Get(in.Train)
		_, evaluation := v.Datasets.Get(in.Evaluation)
		if !train && !evaluation {
			return in
		}
	}
}

const maxID = 63

// datasetOf returns the name of a dataset in the job's account. The ID is the job's ID and the
// suffix; the job's ID is truncated if the result would be too long.
func datasetOf(j job, suffix string) domain.Name {
	id := j.Name.ID()
	id = strings.TrimRight(id[:min(len(id), maxID-len(suffix))], "-")
	return domain.NewName(j.Name.Account(), domain.Datasets.Collection, id+suffix)
}

// prepare plans the next step for a job in CREATING_INPUT_DATASET: to create the two datasets with
// the names in Life.Inputs, or to queue the job when both are READY. It records other names when
// one of these is used by another dataset, and fails the job when a dataset cannot be derived.
func prepare(plan *Plan, v *projections.View, j job) {
	if j.Life.Inputs == nil {
		// Earlier versions of anneal recorded no names and derived no datasets.
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
		return
	}
	fail := func(failure *domain.Error) {
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(failure)}))
	}
	dataset := j.carvedDataset()
	source, found := v.Datasets.Get(domain.Name(dataset))
	var missing []domain.Intent
	ready := true
	for _, rest := range []bool{true, false} {
		name := j.Life.Inputs.Evaluation
		if rest {
			name = j.Life.Inputs.Train
		}
		row, exists := v.Datasets.Get(name)
		switch {
		case exists && !isSplit(&row.State, j, dataset, rest): // another dataset has taken the name meanwhile
			plan.add(carveOut(v, j))
			return
		case exists && row.State.FillFailed():
			fail(unusable(v, name))
			return
		case exists:
			ready = ready && row.State.State == domain.DatasetReady
		case !found:
			fail(domain.Errorf(domain.NotFound, "dataset: %s was deleted while its evaluation split was being created: create "+
				"another job", dataset))
			return
		default:
			missing = append(missing, createSplit(j, name, rest, source))
		}
	}
	for _, intent := range missing {
		plan.add(intent)
	}
	if ready && len(missing) == 0 {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
	}
}

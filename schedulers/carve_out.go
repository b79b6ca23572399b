package schedulers

import (
	"fmt"
	"hash/fnv"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A job with evalAutoCarveout gets two datasets before its first attempt: an evaluation split, and
// the remaining rows for training. An event of the job names the datasets, which are created after
// the event, so that a failure before it leaves no dataset. The datasets outlive the job.

// splits returns the names of the two datasets that were created for the job; nil when the job has
// none, or when one of them is unusable and two others can be created.
func (j job) splits(v *projections.View) *domain.JobInputs {
	in := j.Life.Inputs
	if in != nil && j.Life.Attempt == 0 && (unusable(v, in.Train) != nil || unusable(v, in.Evaluation) != nil) {
		return nil
	}
	return in
}

// unusable returns why a derived dataset will never have rows; nil when it has rows or will have
// them.
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

// carves reports whether the job's evaluation split must still be created. If an earlier version of
// anneal started an attempt without an evaluation split, the trainer splits the rows.
func (j job) carves(v *projections.View) bool {
	return j.Life.Attempt == 0 && j.carved() != "" && j.splits(v) == nil
}

// carved returns the dataset from which rows are held out for evaluation; "" for none.
func (j job) carved() string {
	if spec := j.spec(); spec.AutoCarveout {
		return spec.Dataset
	}
	return ""
}

// data returns the names of the datasets for training and for evaluation: the splits of the job if
// there are any, otherwise dataset and evaluation.
func (j job) data(v *projections.View, dataset, evaluation string) (string, string) {
	if in := j.splits(v); in != nil {
		return string(in.Train), string(in.Evaluation)
	}
	return dataset, evaluation
}

// afterValidation returns the intent that follows the validation of a job: to create its evaluation split, to
// wait for its first step, or to queue it.
func afterValidation(v *projections.View, j job) domain.Intent {
	if j.carves(v) {
		return carveOut(v, j)
	}
	if j.spec().AwaitsStep() {
		return await(j)
	}
	return domain.IntendJob(j.Name, domain.QueueJob{})
}

// await returns the intent that makes a trainer job wait for its next train step.
func await(j job) domain.Intent {
	return domain.Intend(domain.TrainerJobs, j.Name, domain.Command[domain.TrainerJob](domain.AwaitStep{}))
}

// carveOut returns the intent to record the names of the two datasets of a job.
func carveOut(v *projections.View, j job) domain.Intent {
	return domain.IntendJob(j.Name, domain.PrepareInput{Inputs: freeNames(v, j)})
}

// createSide returns the intent to create one of the two datasets that a job names: the remaining
// rows if rest is true, otherwise the evaluation split. The seed of the split depends only on the
// job's name.
func createSide(j job, name domain.Name, rest bool, source *projections.Row[domain.Dataset]) domain.Intent {
	hash := fnv.New32a()
	hash.Write([]byte(j.Name))
	side := domain.Split{Held: domain.CarveOut(source.State.ExampleCount), Of: source.State.ExampleCount,
		Seed: int(hash.Sum32() & domain.MaxSeed), Rest: rest}
	return domain.Intend(domain.Datasets, name, domain.CreateDataset{CreatedBy: j.Life.CreatedBy,
		DatasetSpec: domain.DatasetSpec{SourceJobName: string(j.Name), Splitted: side.Origin(source.Name)},
		From:        &domain.Derivation{Source: source.Name, Prefix: source.State.Files.Prefix, Split: &side}})
}

// isSide reports whether d is one of the two parts of the given dataset that were created for the
// job: the remaining rows if rest is true, otherwise the evaluation split.
func isSide(d *domain.Dataset, j job, dataset string, rest bool) bool {
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

// prepare creates the two datasets of a job's evaluation split under the names in Life.Inputs, and
// queues the job when both are READY. It records other names when one is taken, and fails the job
// when a dataset cannot be created.
func prepare(plan *Plan, v *projections.View, j job) {
	if j.Life.Inputs == nil {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{})) // earlier versions of anneal recorded no names
		return
	}
	fail := func(failure *domain.Error) {
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(failure)}))
	}
	dataset := j.carved()
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
		case exists && !isSide(&row.State, j, dataset, rest): // another dataset has the name
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
			missing = append(missing, createSide(j, name, rest, source))
		}
	}
	for _, intent := range missing {
		plan.add(intent)
	}
	if ready && len(missing) == 0 {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
	}
}

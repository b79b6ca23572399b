package schedulers

import (
	"fmt"
	"hash/fnv"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A job with evalAutoCarveout is given two datasets of its own before its first
// attempt: the rows that it is measured on, and the rest, that it learns from.
// The job's event names them; they are created after it, so that nothing is left
// of a job that did not get as far. Their rows are made like those of any dataset
// that comes from another, and they outlive the job.

// made are the datasets that were made of the job's own; nil when there are
// none, or when some are of no use and can be made again.
func (j job) made(v *projections.View) *domain.JobInputs {
	in := j.Life.Inputs
	if in != nil && j.Life.Attempt == 0 && (usable(v, in.Train) != nil || usable(v, in.Evaluation) != nil) {
		return nil
	}
	return in
}

// usable is why a dataset that the platform makes will have no rows; nil while
// they are being made.
func usable(v *projections.View, name domain.Name) *domain.Error {
	row, ok := v.Datasets.Get(name)
	switch {
	case !ok:
		return domain.Errorf(domain.FailedPrecondition, "%s was deleted: resume the job, and it is made again", name)
	case row.State.Unfilled():
		return domain.Errorf(domain.FailedPrecondition, "the rows of %s could not be made (%s): mend that, then resume the job", name, row.State.Status.Message)
	}
	return nil
}

// carves tells whether rows are still to be held back. A job that was begun by
// an earlier version has its trainer do that, for good.
func (j job) carves(v *projections.View) bool {
	return j.Life.Attempt == 0 && j.carved() != "" && j.made(v) == nil
}

// carved returns the dataset of which rows are held back for evaluation; "" for none.
func (j job) carved() string {
	if spec := j.spec(); spec.AutoCarveout {
		return spec.Dataset
	}
	return ""
}

// data are the datasets that the job learns from and is measured on: those that
// were made of its own, once they are.
func (j job) data(v *projections.View, dataset, evaluation string) (string, string) {
	if in := j.made(v); in != nil {
		return string(in.Train), string(in.Evaluation)
	}
	return dataset, evaluation
}

// queue is what comes after validation.
func queue(v *projections.View, j job) domain.Intent {
	if j.carves(v) {
		return carveOut(v, j)
	}
	if j.spec().Awaits() {
		return await(j)
	}
	return domain.IntendJob(j.Name, domain.QueueJob{})
}

// await has a trainer that has nothing to learn from wait for its next step.
func await(j job) domain.Intent {
	return domain.Intend(domain.TrainerJobs, j.Name, domain.Command[domain.TrainerJob](domain.AwaitStep{}))
}

// carveOut names the two datasets that the job waits for from now on.
func carveOut(v *projections.View, j job) domain.Intent {
	return domain.IntendJob(j.Name, domain.PrepareInput{Inputs: freeNames(v, j)})
}

// createSide creates one of the two datasets that a job names. The rows that are
// held back depend on the job's name and nothing else.
func createSide(j job, name domain.Name, rest bool, source *projections.Row[domain.Dataset]) domain.Intent {
	hash := fnv.New32a()
	hash.Write([]byte(j.Name))
	side := domain.Split{Held: domain.CarveOut(source.State.ExampleCount), Of: source.State.ExampleCount, Seed: int(hash.Sum32() & domain.MaxSeed), Rest: rest}
	return domain.Intend(domain.Datasets, name, domain.CreateDataset{CreatedBy: j.Life.CreatedBy,
		DatasetSpec: domain.DatasetSpec{SourceJobName: string(j.Name), Splitted: side.Origin(source.Name)},
		From:        &domain.Derivation{Source: source.Name, Folder: source.State.Files.Folder, Split: &side}})
}

// isSide tells whether a dataset is one side of a split of a job's dataset.
func isSide(d *domain.Dataset, j job, dataset string, rest bool) bool {
	from := d.From
	return d.SourceJobName == string(j.Name) && from != nil && string(from.Source) == dataset && from.Split != nil && from.Split.Rest == rest
}

// freeNames are the job's ID with -train and -eval, and the first number with
// which both are free.
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

const longestID = 63

// datasetOf is the name of a dataset of the job's account: the job's ID, as far
// as there is room for it, and what follows it.
func datasetOf(j job, suffix string) domain.Name {
	id := j.Name.ID()
	id = strings.TrimRight(id[:min(len(id), longestID-len(suffix))], "-")
	return domain.NewName(j.Name.Account(), domain.Datasets.Collection, id+suffix)
}

// prepared creates the datasets that a job names, queues it when their rows are
// made, and fails it when they cannot be.
func prepared(plan *Plan, v *projections.View, j job) {
	if j.Life.Inputs == nil {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{})) // recorded before input was made of a job's own
		return
	}
	fail := func(fault *domain.Error) {
		plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(fault)}))
	}
	dataset := j.carved()
	source, uploaded := v.Datasets.Get(domain.Name(dataset))
	var missing []domain.Intent
	ready := true
	for _, rest := range []bool{true, false} {
		name := j.Life.Inputs.Evaluation
		if rest {
			name = j.Life.Inputs.Train
		}
		row, there := v.Datasets.Get(name)
		switch {
		case there && !isSide(&row.State, j, dataset, rest): // somebody else has taken the name
			plan.add(carveOut(v, j))
			return
		case there && row.State.Unfilled():
			fail(usable(v, name))
			return
		case there:
			ready = ready && row.State.State == domain.DatasetReady
		case !uploaded:
			fail(domain.Errorf(domain.NotFound, "dataset: %s was deleted while its evaluation split was being created", dataset))
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

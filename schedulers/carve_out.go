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
// They are created with the job's step in one batch, their rows are made like
// those of any dataset that comes from another, and they outlive the job.

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
func usable(v *projections.View, name domain.Name) *domain.Fault {
	row, ok := v.Datasets.Get(name)
	switch {
	case !ok:
		return domain.Faultf(domain.FailedPrecondition, "%s was deleted: resume the job, and it is made again", name)
	case row.State.Unfilled():
		return domain.Faultf(domain.FailedPrecondition, "the rows of %s could not be made (%s): mend that, then resume the job", name, row.State.Status.Message)
	}
	return nil
}

// carves tells whether rows are still to be held back. A job that was begun by
// an earlier version has its trainer do that, for good.
func (j job) carves(v *projections.View) bool {
	dataset, _ := j.kind.carve()
	return dataset != "" && j.Life.Attempt == 0 && j.made(v) == nil
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
func queue(v *projections.View, j job) Step {
	if j.carves(v) {
		return carveOut(v, j)
	}
	if j.awaits() {
		return Step{await(j)}
	}
	return Step{domain.IntendJob(j.Name, domain.QueueJob{})}
}

// await has a trainer that has nothing to learn from wait for its next step.
func await(j job) domain.Intent {
	return domain.Intend(domain.TrainerJobs, j.Name, domain.Command[domain.TrainerJob](domain.AwaitStep{}))
}

// carveOut creates both datasets and has the job wait for their rows. The
// rows that are held back depend on the job's name and nothing else.
func carveOut(v *projections.View, j job) Step {
	dataset, _ := j.kind.carve()
	row, ok := v.Datasets.Get(domain.Name(dataset))
	if !ok {
		return nil // it was checked just now
	}
	hash := fnv.New32a()
	hash.Write([]byte(j.Name))
	split := domain.Split{Held: domain.CarveOut(row.State.ExampleCount), Of: row.State.ExampleCount, Seed: int(hash.Sum32() & domain.MaxSeed)}
	inputs := freeNames(v, j)
	create := func(name domain.Name, rest bool) domain.Intent {
		side := split
		side.Rest = rest
		return domain.Intend(domain.Datasets, name, domain.CreateDataset{CreatedBy: j.Life.CreatedBy,
			DatasetSpec: domain.DatasetSpec{SourceJobName: string(j.Name), Splitted: side.Origin(row.Name)},
			From:        &domain.Derivation{Source: row.Name, Folder: row.State.Files.Folder, Split: &side}})
	}
	return Step{create(inputs.Train, true), create(inputs.Evaluation, false), domain.IntendJob(j.Name, domain.PrepareInput{Inputs: inputs})}
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

// prepared queues a job when its datasets are made, and fails it when they
// cannot be.
func prepared(plan *Plan, v *projections.View, j job) {
	if j.Life.Inputs == nil {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{})) // recorded before input was made of a job's own
		return
	}
	ready := true
	for _, name := range []domain.Name{j.Life.Inputs.Train, j.Life.Inputs.Evaluation} {
		if fault := usable(v, name); fault != nil {
			plan.add(domain.IntendJob(j.Name, domain.FailJob{Status: domain.StatusOf(fault)}))
			return
		}
		row, _ := v.Datasets.Get(name)
		ready = ready && row.State.State == domain.DatasetReady
	}
	if ready {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{}))
	}
}

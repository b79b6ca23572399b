package schedulers

import (
	"fmt"
	"hash/fnv"
	"strings"

	"anneal/domain"
	"anneal/projections"
)

// A job with evalAutoCarveout gets two datasets before its first attempt: an evaluation split, and the
// remaining rows for training. An event of the job names them; they are created after it, so that an
// earlier failure leaves nothing behind. Their rows are derived like those of any dataset with a
// source, and they outlive the job.

// splits returns the datasets that were created for the job; nil when exists are none, or when one is
// unusable and can be created again.
func (j job) splits(v *projections.View) *domain.JobInputs {
	in := j.Life.Inputs
	if in != nil && j.Life.Attempt == 0 && (usable(v, in.Train) != nil || usable(v, in.Evaluation) != nil) {
		return nil
	}
	return in
}

// usable returns why a derived dataset will have no rows; nil while they are being derived.
func usable(v *projections.View, name domain.Name) *domain.Error {
	row, ok := v.Datasets.Get(name)
	switch {
	case !ok:
		return domain.Errorf(domain.FailedPrecondition, "%s was deleted: resume the job, and it is created again", name)
	case row.State.Unfilled():
		return domain.Errorf(domain.FailedPrecondition,
			"the rows of %s could not be created (%s): correct that, then resume the job", name,
			row.State.Status.Message)
	}
	return nil
}

// carves reports whether the evaluation split is still to be created. For a job that an earlier
// version started, its trainer splits the rows.
func (j job) carves(v *projections.View) bool {
	return j.Life.Attempt == 0 && j.carved() != "" && j.splits(v) == nil
}

// carved returns the dataset of which rows are held back for evaluation; "" for none.
func (j job) carved() string {
	if spec := j.spec(); spec.AutoCarveout {
		return spec.Dataset
	}
	return ""
}

// data returns the datasets for training and evaluation: the splits of the job, if exists are any.
func (j job) data(v *projections.View, dataset, evaluation string) (string, string) {
	if in := j.splits(v); in != nil {
		return string(in.Train), string(in.Evaluation)
	}
	return dataset, evaluation
}

// queue returns the command that follows validation.
func queue(v *projections.View, j job) domain.Intent {
	if j.carves(v) {
		return carveOut(v, j)
	}
	if j.spec().Awaits() {
		return await(j)
	}
	return domain.IntendJob(j.Name, domain.QueueJob{})
}

// await makes a trainer without data wait for its next step.
func await(j job) domain.Intent {
	return domain.Intend(domain.TrainerJobs, j.Name, domain.Command[domain.TrainerJob](domain.AwaitStep{}))
}

// carveOut names the two datasets that the job waits for.
func carveOut(v *projections.View, j job) domain.Intent {
	return domain.IntendJob(j.Name, domain.PrepareInput{Inputs: freeNames(v, j)})
}

// createSide creates one of the two datasets that a job names. The seed of the split depends on the
// job's name only.
func createSide(j job, name domain.Name, rest bool, source *projections.Row[domain.Dataset]) domain.Intent {
	hash := fnv.New32a()
	hash.Write([]byte(j.Name))
	side := domain.Split{Held: domain.CarveOut(source.State.ExampleCount), Of: source.State.ExampleCount,
		Seed: int(hash.Sum32() & domain.MaxSeed), Rest: rest}
	return domain.Intend(domain.Datasets, name, domain.CreateDataset{CreatedBy: j.Life.CreatedBy,
		DatasetSpec: domain.DatasetSpec{SourceJobName: string(j.Name), Splitted: side.Origin(source.Name)},
		From:        &domain.Derivation{Source: source.Name, Folder: source.State.Files.Folder, Split: &side}})
}

// isSide reports whether a dataset is one side of a split of a job's dataset.
func isSide(d *domain.Dataset, j job, dataset string, rest bool) bool {
	from := d.From
	return d.SourceJobName == string(j.Name) && from != nil && string(from.Source) == dataset && from.Split != nil &&
		from.Split.Rest == rest
}

// freeNames returns the job's ID with -train and -eval, and the first number with which both names are
// free.
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

// datasetOf returns the name of a dataset in the job's account: the job's ID, truncated to fit, and a
// suffix.
func datasetOf(j job, suffix string) domain.Name {
	id := j.Name.ID()
	id = strings.TrimRight(id[:min(len(id), maxID-len(suffix))], "-")
	return domain.NewName(j.Name.Account(), domain.Datasets.Collection, id+suffix)
}

// prepare creates the datasets that a job names, queues the job when they are READY, and fails it when
// they cannot be created.
func prepare(plan *Plan, v *projections.View, j job) {
	if j.Life.Inputs == nil {
		plan.add(domain.IntendJob(j.Name, domain.QueueJob{})) // recorded before jobs had splits
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
		case exists && !isSide(&row.State, j, dataset, rest): // the name was taken meanwhile
			plan.add(carveOut(v, j))
			return
		case exists && row.State.Unfilled():
			fail(usable(v, name))
			return
		case exists:
			ready = ready && row.State.State == domain.DatasetReady
		case !found:
			fail(domain.Errorf(domain.NotFound, "dataset: %s was deleted while its evaluation split was being created",
				dataset))
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

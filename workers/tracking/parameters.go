package tracking

import (
	"bytes"
	"cmp"
	"encoding/json"
	"strconv"

	"anneal/domain"
	"anneal/projections"
)

// describe returns what the tracker shows about a job, except metrics.
func describe(job *projections.Row[domain.Job]) description {
	spec := job.State.Spec()
	d := description{Job: job.Name, CreateEvent: job.CreateEvent, DisplayName: cmp.Or(spec.DisplayName, job.Name.ID()),
		Project: spec.Tracker.Project, Entity: spec.Tracker.Entity, RunID: spec.Tracker.RunID, Start: job.CreateTime,
		Parameters: parameters(job.Name, &spec)}
	if start := job.State.Life().StartTime; start != nil {
		d.Start = *start
	}
	return d
}

// parameters returns the settings of a job as a flat object. It lists the included settings
// explicitly, so that a secret of a job can never be among them.
func parameters(job domain.Name, spec *domain.JobSpec) map[string]any {
	all := map[string]any{"job": string(job), "method": spec.Method, "dataset": spec.Dataset, "nodes": max(spec.Nodes, 1)}
	add := func(name, value string) {
		if value != "" {
			all[name] = value
		}
	}
	add("evaluationDataset", spec.EvaluationDataset)
	add("evaluator", spec.Evaluator)
	flatten(all, "", objectOf(spec.Config))
	flatten(all, "lossConfig.", objectOf(spec.Loss))
	if r := spec.Rollouts; r != nil {
		flatten(all, "inferenceParameters.", objectOf(r.InferenceParameters))
		all["chunkSize"], all["maxStaleness"] = r.ChunkSize, r.MaxStaleness
	}
	for i, weight := range spec.RewardWeights {
		all["rewardWeights."+strconv.Itoa(i)] = weight
	}
	return all
}

// objectOf returns value as a JSON object, in which numbers keep their digits; nil for null.
func objectOf(value any) (object map[string]any) {
	data, err := json.Marshal(value)
	if err != nil {
		return nil
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.UseNumber()
	if decoder.Decode(&object) != nil {
		return nil
	}
	return object
}

// flatten adds the fields of object to all. A field of a nested object gets the name "OUTER.INNER".
// prefix is the outer name with a dot.
func flatten(all map[string]any, prefix string, object map[string]any) {
	for name, value := range object {
		switch value := value.(type) {
		case map[string]any:
			flatten(all, prefix+name+".", value)
		case nil:
		default:
			all[prefix+name] = value
		}
	}
}

package tinker

import (
	"crypto/sha256"
	"fmt"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/blobs/operations"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	protocol "anneal/tinker"
)

func (s *Service) submitOperations() []request.Operation {
	post := func(id, path, summary string, limit int, h handler) request.Operation {
		return request.Operation{ID: id, Method: "POST", Path: path, Summary: summary, Permission: request.Write,
			Handle: s.handle(h, limit)}
	}
	return []request.Operation{
		post("submitForwardBackward", "forward_backward", "Compute a pass", protocol.MaxPassBody, forwardBackward),
		post("submitForward", "forward", "Compute a pass without gradients", protocol.MaxPassBody, forward),
		post("submitOptimStep", "optim_step", "Take a step of the optimizer", protocol.MaxBody, optimStep),
		post("submitSaveWeights", "save_weights", "Save a run for training", protocol.MaxBody, saveWeights),
		post("submitSaveWeightsForSampler", "save_weights_for_sampler", "Save a run for sampling", protocol.MaxBody,
			saveWeightsForSampler),
		post("submitLoadWeights", "load_weights", "Load a checkpoint into a new run", protocol.MaxBody, loadWeights),
		post("submitSample", "asample", "Generate samples", protocol.MaxBody, sample),
		post("createSamplingSession", "create_sampling_session", "Create a sampling session", protocol.MaxBody,
			createSamplingSession),
		{ID: "getSamplingSession", Method: "GET", Path: "samplers/{sampler}", Summary: "Read a sampling session",
			Permission: request.Read, Handle: s.handle(getSampler, 0)},
	}
}

// Kinds of operations in the journal. The kind selects how the result is converted to a response.
const (
	kindPass    = "forward_backward"
	kindStep    = "optim_step"
	kindSave    = "save_weights"
	kindSampler = "save_weights_for_sampler"
	kindLoad    = "load_weights"
	kindSample  = "asample"
)

func forwardBackward(c *call) (any, error) { return pass(c, false) }

func forward(c *call) (any, error) { return pass(c, true) }

func pass(c *call, forwardOnly bool) (any, error) {
	given, err := protocol.DecodePass(c.Request.Header.Get("Content-Type"), c.body, forwardOnly)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	data, err := given.Pass()
	if err != nil {
		return nil, err
	}
	o := engines.TrainOperation{ForwardBackward: &data}
	if given.ForwardOnly {
		o = engines.TrainOperation{Forward: &data}
	}
	return c.submit(row, given.SeqID, kindPass, noteOfTargets(protocol.TargetsPerToken(&data)), o)
}

// noteOfTargets returns the note of a pass: for each datum the number of targets of each of its
// tokens, or "" if every token has one target. The shapes of the outputs depend on it.
func noteOfTargets(perToken []int) string {
	texts := make([]string, len(perToken))
	for i, n := range perToken {
		texts[i] = strconv.Itoa(n)
	}
	return strings.Join(texts, ",")
}

// targetsOfNote is the inverse of noteOfTargets.
func targetsOfNote(note string) (perToken []int) {
	if note == "" {
		return nil
	}
	for text := range strings.SplitSeq(note, ",") {
		n, _ := strconv.Atoi(text) // a damaged number counts as 1
		perToken = append(perToken, max(1, n))
	}
	return perToken
}

func optimStep(c *call) (any, error) {
	given, err := decode[protocol.OptimStepRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	params := given.AdamParams.Params()
	return c.submit(row, *given.SeqID, kindStep, "", engines.TrainOperation{Step: &params})
}

func saveWeights(c *call) (any, error) {
	given, err := decode[protocol.SaveWeightsRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	save := engines.TrainSave{Name: fmt.Sprintf("checkpoint-%06d", *given.SeqID), Overwrite: given.Overwrite}
	if given.Path != nil {
		save.Name = *given.Path
	}
	if given.TTLSeconds != nil {
		save.TTLSeconds = *given.TTLSeconds
	}
	return c.submit(row, *given.SeqID, kindSave, "", engines.TrainOperation{Save: &save})
}

// ephemeralName is the prefix of the names of ephemeral checkpoints; the number of the sampling
// session follows. Clients cannot choose names with this prefix.
const ephemeralName = "sampling-session-"

func saveWeightsForSampler(c *call) (any, error) {
	given, err := decode[protocol.SaveWeightsForSamplerRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	save := engines.TrainSave{Ephemeral: given.Ephemeral()}
	if save.Ephemeral {
		save.Name = ephemeralName + strconv.FormatInt(*given.SamplingSessionSeqID, 10)
	} else if save.Name = *given.Path; strings.HasPrefix(save.Name, ephemeralName) {
		var v domain.Violations
		v.Add("path", "begins with %s, which is reserved for sampling sessions: choose another name", ephemeralName)
		return nil, v.Err()
	}
	if given.TTLSeconds != nil {
		save.TTLSeconds = *given.TTLSeconds
	}
	note := ""
	if save.Ephemeral {
		path := protocol.Path{Run: row.Name.ID(), Kind: protocol.SamplerCheckpoint, Name: save.Name}
		note = samplerOf(row.State.Session.ID(), *given.SamplingSessionSeqID, path.String()).String()
	}
	return c.submit(row, *given.SeqID, kindSampler, note, engines.TrainOperation{SaveSampler: &save})
}

func loadWeights(c *call) (any, error) {
	given, err := decode[protocol.LoadWeightsRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	path, saved, source, err := c.checkpoint("path", given.Path)
	if err != nil {
		return nil, err
	}
	var v domain.Violations
	v.Require(path.Kind == protocol.TrainingCheckpoint, "path", "is a checkpoint for sampling: load one that "+
		"save_weights has saved, tinker://RUN/%s/NAME", protocol.TrainingCheckpoint)
	from, to := source.State.Config, row.State.Config
	from.Seed, to.Seed = 0, 0
	v.Require(from == to, "path", "has an adapter with the settings %+v, but the model was created with %+v: create the "+
		"model with the settings of weights_info", from, to)
	if err := v.Err(); err != nil {
		return nil, err
	}
	return c.submit(row, *given.SeqID, kindLoad, given.Path, engines.TrainOperation{
		Load: &engines.TrainLoad{Checkpoint: saved.Files.Prefix, Optimizer: given.Optimizer}})
}

// submit stores an operation of a run durably and returns its request ID.
func (c *call) submit(row *projections.Row[domain.TrainingRun], seq int64, kind, note string,
	o engines.TrainOperation) (any, error) {
	if err := c.acceptsOperations(row); err != nil {
		return nil, err
	}
	if err := c.store(c.runLane(row.Name), seq, kind, note, o); err != nil {
		if domain.CodeOf(err) == domain.DataLoss {
			return nil, c.corrupt(row, err)
		}
		return nil, err
	}
	return protocol.Submitted{RequestID: requestID{kind: runRequest, id: row.Name.ID(), seq: seq}.String(),
		ModelID: row.Name.ID()}, nil
}

// acceptsOperations returns an error if the run has ended, or if the job cannot start an attempt.
func (c *call) acceptsOperations(row *projections.Row[domain.TrainingRun]) error {
	if err := row.State.MustLive(); err != nil {
		return err
	}
	return c.wake()
}

// store stores an operation durably. A repeated request is recognized by what it means: clients encode
// a request again when they repeat it, and the order of maps in it can then differ. The files of the
// checkpoint that the request names are left out, because the path can have others by then: the note of a
// load, and the lane of a sample, have the path.
func (c *call) store(lane operations.Lane, seq int64, kind, note string, o engines.TrainOperation) error {
	body, err := o.Encode()
	if err != nil {
		return err
	}
	meaning := body
	if o.Load != nil || o.Sample != nil {
		if meaning, err = withoutFiles(o).Encode(); err != nil {
			return err
		}
	}
	ctx, cancel := c.Detached()
	defer cancel()
	_, err = c.Journal.Submit(ctx, lane, operations.Operation{Seq: seq, Kind: kind, Note: note, Body: body,
		Hash: sha256.Sum256([]byte(kind + "\x00" + note + "\x00" + string(meaning)))})
	return err
}

// withoutFiles returns an operation without the prefix of the checkpoint that it reads.
func withoutFiles(o engines.TrainOperation) engines.TrainOperation {
	switch {
	case o.Load != nil:
		load := *o.Load
		load.Checkpoint = ""
		o.Load = &load
	case o.Sample != nil:
		sample := *o.Sample
		sample.Weights = ""
		o.Sample = &sample
	}
	return o
}

// corrupt records that operations of the run are lost, and returns the error of all its operations.
func (c *call) corrupt(row *projections.Row[domain.TrainingRun], cause error) error {
	_, err := c.Do(domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.CorruptTrainingRun{Reason: cause.Error()})))
	if err != nil {
		return err
	}
	if now, ok := c.View().Runs.Get(row.Name); ok && now.State.Corruption != nil {
		return now.State.CorruptionError()
	}
	return cause
}

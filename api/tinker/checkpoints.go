package tinker

import (
	"slices"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	protocol "anneal/tinker"
)

const checkpointPath = "training_runs/{run}/checkpoints/{kind}/{name}"

func (s *Service) checkpointOperations() []request.Operation {
	get := func(id, path, summary string, h handler) request.Operation {
		return request.Operation{ID: id, Method: "GET", Path: path, Summary: summary, Permission: request.Read,
			Handle: s.handle(h, 0)}
	}
	return []request.Operation{
		{ID: "getTrainingWeights", Method: "POST", Path: "weights_info", Summary: "Read facts about a checkpoint",
			Permission: request.Read, Handle: s.handle(weightsInfo, protocol.MaxBody)},
		get("listTrainingCheckpoints", "checkpoints", "List the checkpoints of all runs", listCheckpoints),
		get("listRunCheckpoints", "training_runs/{run}/checkpoints", "List the checkpoints of a run", listRunCheckpoints),
		get("getTrainingArchive", checkpointPath+"/archive", "Get the URL of the files of a checkpoint", archiveURL),
		{ID: "downloadTrainingArchive", Method: "GET", Path: "archives/{account}/{run}/{kind}/{name}",
			Summary: "Download the files of a checkpoint", Gate: request.Everyone, Handle: s.downloadArchive},
		{ID: "deleteTrainingCheckpoint", Method: "DELETE", Path: checkpointPath, Summary: "Delete a checkpoint",
			Permission: request.Write, Handle: s.handle(deleteCheckpoint, 0)},
		{ID: "setTrainingCheckpointTTL", Method: "PUT", Path: checkpointPath + "/ttl",
			Summary: "Change when a checkpoint expires", Permission: request.Write,
			Handle: s.handle(setTTL, protocol.MaxBody)},
	}
}

// kindOf maps the kinds of checkpoints in paths to those of package domain.
var kindOf = map[protocol.CheckpointKind]string{
	protocol.TrainingCheckpoint: domain.TrainingCheckpointTraining,
	protocol.SamplerCheckpoint:  domain.TrainingCheckpointSampler,
}

// checkpoint returns the checkpoint with a path, and its run. The run can belong to another job of
// the account that trains the same base model. field is the request field that contains the path.
func (c *call) checkpoint(field, text string) (path protocol.Path, saved domain.TrainingCheckpoint,
	row *projections.Row[domain.TrainingRun], err error) {
	var v domain.Violations
	if path, err = protocol.ParsePath(text); err != nil {
		v.Add(field, "%v", err)
		return path, saved, nil, v.Err()
	}
	found := domain.ValidID(path.Run)
	if found {
		row, found = c.View().Runs.Get(domain.NewName(c.Account, domain.TrainingRuns.Collection, path.Run))
	}
	if found {
		saved, found = row.State.Checkpoint(kindOf[path.Kind], path.Name)
	}
	if !found || saved.Expired(c.Now()) {
		return path, saved, nil, request.NotFoundReason("CHECKPOINT_NOT_FOUND",
			"the account has no checkpoint %s: it was not saved yet, has expired or was deleted, or newer ones have replaced "+
				"it; list checkpoints with GET %scheckpoints", quote(text), protocol.BasePath)
	}
	base, err := c.baseModel()
	if err == nil && row.State.BaseModel != base {
		v.Add(field, "is a checkpoint of %s, but the trainer job trains %s: use the route of a job with that base model",
			quote(modelName(row.State.BaseModel)), quote(modelName(base)))
		err = v.Err()
	}
	return path, saved, row, err
}

// pathCheckpoint returns the checkpoint that the path of the request names.
func (c *call) pathCheckpoint() (protocol.Path, domain.TrainingCheckpoint, *projections.Row[domain.TrainingRun],
	error) {
	path := protocol.Path{Run: c.PathValue("run"), Kind: protocol.CheckpointKind(c.PathValue("kind")),
		Name: c.PathValue("name")}
	return c.checkpoint("path", path.String())
}

// checkpointsOf returns the checkpoints of a run that lists contain, newest first.
func (c *call) checkpointsOf(row *projections.Row[domain.TrainingRun]) (all []protocol.Checkpoint) {
	for _, saved := range slices.Backward(row.State.Checkpoints) {
		for kind, name := range kindOf {
			if saved.Kind == name && !saved.Ephemeral && !saved.Expired(c.Now()) {
				path := protocol.Path{Run: row.Name.ID(), Kind: kind, Name: saved.Name}
				all = append(all, protocol.NewCheckpoint(path, saved.Time, saved.Files.Bytes(), saved.ExpireTime))
			}
		}
	}
	return all
}

func listCheckpoints(c *call) (any, error) {
	limit, offset, err := c.page()
	if err != nil {
		return nil, err
	}
	var all []protocol.Checkpoint
	for _, row := range c.runs() {
		all = append(all, c.checkpointsOf(row)...)
	}
	slices.SortStableFunc(all, func(a, b protocol.Checkpoint) int { return b.Time.Compare(a.Time) })
	return protocol.Checkpoints{Checkpoints: append([]protocol.Checkpoint{}, part(all, limit, offset)...),
		Cursor: &protocol.Cursor{Offset: offset, Limit: limit, TotalCount: len(all)}}, nil
}

func listRunCheckpoints(c *call) (any, error) {
	row, err := c.trainingRun(c.PathValue("run"))
	if err != nil {
		return nil, err
	}
	return protocol.Checkpoints{Checkpoints: append([]protocol.Checkpoint{}, c.checkpointsOf(row)...)}, nil
}

func weightsInfo(c *call) (any, error) {
	given, err := decode[protocol.WeightsInfoRequest](c)
	if err != nil {
		return nil, err
	}
	_, _, row, err := c.checkpoint("tinker_path", given.TinkerPath)
	if err != nil {
		return nil, err
	}
	config := row.State.Config
	return protocol.WeightsInfo{BaseModel: modelName(row.State.BaseModel), IsLora: true, LoraRank: config.Rank,
		TrainAttn: &config.TrainAttn, TrainMLP: &config.TrainMLP, TrainUnembed: &config.TrainUnembed}, nil
}

func deleteCheckpoint(c *call) (any, error) {
	_, saved, row, err := c.pathCheckpoint()
	if err != nil {
		return nil, err
	}
	_, err = c.Do(domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.DeleteTrainingCheckpoint{Kind: saved.Kind, Name: saved.Name})))
	return request.Empty, err
}

func setTTL(c *call) (any, error) {
	given, err := decode[protocol.TTLRequest](c)
	if err != nil {
		return nil, err
	}
	_, saved, row, err := c.pathCheckpoint()
	if err != nil {
		return nil, err
	}
	var expires *time.Time
	if given.TTLSeconds != nil {
		at := c.Time.Add(time.Duration(*given.TTLSeconds) * time.Second)
		expires = &at
	}
	_, err = c.Do(domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.SetTrainingCheckpointExpiry{Kind: saved.Kind, Name: saved.Name, ExpireTime: expires})))
	return request.Empty, err
}

// refused lists the operations of the protocol that this server does not support, each with the
// message of the error.
var refused = []struct{ method, path, message string }{
	{"POST", checkpointPath + "/publish", publishing}, {"DELETE", checkpointPath + "/publish", publishing},
	{"POST", "retrieve_futures", "several results in one response are not supported: request each with retrieve_future"},
	{"POST", "cancel_future", cancelling}, {"POST", "cancel_sample", cancelling}, {"POST", "cancel_sampling", cancelling},
	{"POST", "create_custom_loss", customLoss}, {"POST", "forward_backward_custom", customLoss},
	{"POST", "join_sampling_session", "joining a sampling session is not supported: create another one with the path of " +
		"the checkpoint"},
	{"POST", "create_model_from_external_weights", external}, {"POST", "load_external_weights", external},
	{"POST", "save_weights_external", external}, {"POST", "external_weights_upload_start", external},
	{"POST", "external_weights_upload_finish", external},
	{"POST", "auth/token", "tokens are not supported: send the API key with each request"},
	{"GET", "audit", "the audit log is not part of the training service and not supported here: list it with GET " +
		"/v1/accounts/ACCOUNT/auditRecords at the server's host name"},
	{"GET", "billing/usage/events", "billing is not supported: read usage with GET /v1/accounts/ACCOUNT/usage"},
	{"PUT", "sessions/{session}/project", "projects are not supported: the account of the API key is the project"},
	{"GET", "sessions/{session}/trace_export", "traces of sessions are not supported: read the events of the account"},
	{"POST", "upload_asset", "images and audio are not supported: the models of this server accept only tokens"},
}

const (
	publishing = "publishing checkpoints is not supported: share files with the archive of a checkpoint, or give others " +
		"an API key of the account"
	customLoss = "graphs of custom losses are not supported: compute the gradient of your loss with respect to the " +
		"log-probabilities that forward returns, and send the negative gradient as the weights of a cross_entropy pass"
	cancelling = "cancelling an operation is not supported: it ends when its result is stored; samples end at max_tokens"
	external   = "external weights are not supported: download an adapter with the archive of its checkpoint, or import " +
		"a base model into the account and create a trainer job with it"
)

func (s *Service) refusedOperations() (all []request.Operation) {
	for i, r := range refused {
		unsupported := &domain.Error{Code: domain.Unimplemented, Reason: "NOT_SUPPORTED", Message: r.message}
		all = append(all, request.Operation{ID: "refusedTraining" + string(rune('A'+i)), Method: r.method, Path: r.path,
			Summary: "Refused", Permission: request.Read,
			Handle: func(*request.Call) (any, error) { return nil, unsupported }})
	}
	return all
}

// NotFound returns the error for a path that the protocol does not have.
func NotFound(path string) *domain.Error {
	return &domain.Error{Code: domain.NotFound, Reason: "NO_SUCH_PATH", Message: "the host name of a trainer job serves " +
		"only its training service, and has no path " + quote(path) + ": set the client's base URL to the address without " +
		"a path, and send other requests to the server's host name"}
}

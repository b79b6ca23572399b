package tinker

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"slices"
	"strconv"
	"time"

	"anneal/api/request"
	"anneal/domain"
	"anneal/projections"
	protocol "anneal/tinker"
)

func (s *Service) runOperations() []request.Operation {
	post := func(id, path, summary string, permission request.Permission, h handler) request.Operation {
		return request.Operation{ID: id, Method: "POST", Path: path, Summary: summary, Permission: permission,
			Handle: s.handle(h, protocol.MaxBody)}
	}
	unload := post("unloadTrainingRun", "unload_model", "End a run", request.Write, unloadModel)
	unload.ReleasesResources = true
	return []request.Operation{
		post("createTrainingRun", "create_model", "Create a run", request.Write, createModel), unload,
		post("getTrainingModel", "get_info", "Read facts about a run", request.Read, modelInfo),
		{ID: "listServiceRuns", Method: "GET", Path: "training_runs", Summary: "List runs", Permission: request.Read,
			Handle: s.handle(listRuns, 0)},
		{ID: "getServiceRun", Method: "GET", Path: "training_runs/{run}", Summary: "Read a run", Permission: request.Read,
			Handle: s.handle(getRun, 0)},
	}
}

// runName returns the name of a run. It is derived from the session and modelSeq, so that a retried
// request does not create a second run.
func runName(session domain.Name, modelSeq int64) domain.Name {
	return domain.NewName(session.Account(), domain.TrainingRuns.Collection,
		session.ID()+"-"+strconv.FormatInt(modelSeq, 10))
}

// defaultSeed returns the seed of a run whose client gives none.
func defaultSeed(run domain.Name, jobEvent string) uint64 {
	sum := sha256.Sum256([]byte(string(run) + "\x00" + jobEvent))
	return binary.LittleEndian.Uint64(sum[:]) & domain.MaxTrainingSeed
}

func createModel(c *call) (any, error) {
	given, err := decode[protocol.CreateModelRequest](c)
	if err != nil {
		return nil, err
	}
	session, err := c.activeSession(given.SessionID)
	if err != nil {
		return nil, err
	}
	base, err := c.checkBaseModel(given.BaseModel)
	if err != nil {
		return nil, err
	}
	metadata, err := metadataOf(given.UserMetadata)
	if err != nil {
		return nil, err
	}
	name := runName(session.Name, *given.ModelSeqID)
	config := domainConfig(given.LoraConfig, defaultSeed(name, c.job.CreateEvent))
	command := domain.CreateTrainingRun{TrainingRunSpec: domain.TrainingRunSpec{Job: c.job.Name,
		JobEvent: c.job.CreateEvent, Session: session.Name, ModelSeq: *given.ModelSeqID, BaseModel: base, Config: config,
		UserMetadata: metadata, CreatedBy: string(c.Principal.Key)}}
	earlier, exists := c.View().Runs.Get(name)
	if exists {
		command.CreatedBy = earlier.State.CreatedBy // another key of the account may repeat the request
	} else if err := c.checkRuns(); err != nil {
		return nil, err
	}
	if err := c.wake(); err != nil {
		return nil, err
	}
	ctx, cancel := c.Detached()
	defer cancel()
	if !exists { // the journal of a run that exists must not be created again: if it is missing, it is lost
		if err := c.Journal.Create(ctx, c.runLane(name)); err != nil {
			return nil, err
		}
	}
	_, err = c.Do(domain.Intend(domain.TrainingRuns, name, domain.Command[domain.TrainingRun](command)))
	if domain.CodeOf(err) == domain.AlreadyExists {
		var v domain.Violations
		v.Add("model_seq_id", "is %d, which was used before for another model of the session: use the next number",
			*given.ModelSeqID)
		err = v.Err()
	}
	if err != nil {
		return nil, err
	}
	return protocol.Submitted{RequestID: requestID{kind: runRequest, id: name.ID()}.String(), ModelID: name.ID()}, nil
}

func domainConfig(given *protocol.LoraConfig, seed uint64) domain.TrainingRunConfig {
	c := given.RunConfig(seed)
	return domain.TrainingRunConfig{Rank: c.Rank, Alpha: c.Alpha, Seed: c.Seed, TrainAttn: c.TrainAttn,
		TrainMLP: c.TrainMLP, TrainUnembed: c.TrainUnembed}
}

// checkRuns returns an error if the job cannot have another run.
func (c *call) checkRuns() error {
	runs, live := 0, 0
	for _, row := range c.runs() {
		if runs++; row.State.Live() {
			live++
		}
	}
	switch {
	case runs >= MaxRuns:
		return tooMany("runs", MaxRuns)
	case live >= MaxLiveRuns:
		return &domain.Error{Code: domain.FailedPrecondition, Reason: "TOO_MANY_RUNS",
			Message: "the trainer job has " + strconv.Itoa(live) + " runs that accept operations, which is the maximum: " +
				"unload models that you do not need"}
	}
	return nil
}

// runs returns the runs of the job, the newest first.
func (c *call) runs() (rows []*projections.Row[domain.TrainingRun]) {
	for row := range c.View().Runs.In(c.Account) {
		if c.ofJob(row.State.Job, row.State.JobEvent) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *projections.Row[domain.TrainingRun]) int {
		return cmp.Compare(b.CreateVersion, a.CreateVersion)
	})
	return rows
}

func unloadModel(c *call) (any, error) {
	given, err := decode[protocol.UnloadModelRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	if _, err = c.Do(domain.Intend(domain.TrainingRuns, row.Name, domain.Command[domain.TrainingRun](
		domain.UnloadTrainingRun{}))); err != nil {
		return nil, err
	}
	ctx, cancel := c.Detached()
	defer cancel()
	// From now on, the operations that are not executed do not count; the coordinator deletes what is left.
	_, _ = c.Journal.End(ctx, c.runLane(row.Name), time.Time{})
	c.Journal.Notify(c.runLane(row.Name))
	id := row.Name.ID()
	return protocol.Submitted{RequestID: requestID{kind: unloadRequest, id: id}.String(), ModelID: id}, nil
}

func modelInfo(c *call) (any, error) {
	given, err := decode[protocol.ModelInfoRequest](c)
	if err != nil {
		return nil, err
	}
	row, err := c.trainingRun(given.ModelID)
	if err != nil {
		return nil, err
	}
	name := modelName(row.State.BaseModel)
	data := protocol.ModelData{ModelName: name, TokenizerID: name}
	if model, ok := c.View().Models.Get(row.State.BaseModel); ok {
		data.Arch = model.State.ModelType
	}
	return protocol.ModelInfo{ModelID: row.Name.ID(), ModelData: data, IsLora: true, LoraRank: row.State.Config.Rank,
		ModelName: name, Type: "get_info"}, nil
}

// page returns the parameters limit and offset of a list.
func (c *call) page() (limit, offset int, err error) {
	var v domain.Violations
	number := func(name string, missing int) int {
		given := c.Request.URL.Query()[name]
		if len(given) == 0 {
			return missing
		}
		n, err := strconv.Atoi(given[0])
		v.Require(err == nil && len(given) == 1, name, "must be one integer, is %s", quote(given[0]))
		return n
	}
	limit, offset = number("limit", protocol.DefaultPage), number("offset", 0)
	if err := v.Err(); err != nil {
		return 0, 0, err
	}
	return limit, offset, protocol.CheckPage(limit, offset)
}

// part returns a page of a list.
func part[T any](all []T, limit, offset int) []T {
	begin := min(offset, len(all))
	return all[begin : begin+min(limit, len(all)-begin)]
}

func listRuns(c *call) (any, error) {
	limit, offset, err := c.page()
	if err != nil {
		return nil, err
	}
	rows := c.runs()
	out := protocol.TrainingRuns{TrainingRuns: []protocol.TrainingRun{},
		Cursor: protocol.Cursor{Offset: offset, Limit: limit, TotalCount: len(rows)}}
	for _, row := range part(rows, limit, offset) {
		out.TrainingRuns = append(out.TrainingRuns, c.renderRun(row))
	}
	return out, nil
}

func getRun(c *call) (any, error) {
	row, err := c.trainingRun(c.PathValue("run"))
	if err != nil {
		return nil, err
	}
	return c.renderRun(row), nil
}

func (c *call) renderRun(row *projections.Row[domain.TrainingRun]) protocol.TrainingRun {
	r := &row.State
	out := protocol.TrainingRun{TrainingRunID: row.Name.ID(), BaseModel: modelName(r.BaseModel), ModelOwner: c.Account,
		IsLora: true, LoraRank: r.Config.Rank, Corrupted: r.State == domain.TrainingRunCorruptedState,
		LastRequestTime: row.UpdateTime}
	if len(r.UserMetadata) > 0 {
		out.UserMetadata, _ = json.Marshal(r.UserMetadata) // texts only
	}
	for _, saved := range c.checkpointsOf(row) {
		last := &out.LastCheckpoint
		if saved.CheckpointType == protocol.SamplerCheckpoint.Type() {
			last = &out.LastSamplerCheckpoint
		}
		if *last == nil {
			*last = &saved
		}
	}
	return out
}

func listSessions(c *call) (any, error) {
	limit, offset, err := c.page()
	if err != nil {
		return nil, err
	}
	var rows []*projections.Row[domain.TrainingSession]
	for row := range c.View().Sessions.In(c.Account) {
		if c.ofJob(row.State.Job, row.State.JobEvent) {
			rows = append(rows, row)
		}
	}
	slices.SortFunc(rows, func(a, b *projections.Row[domain.TrainingSession]) int {
		return cmp.Compare(b.CreateVersion, a.CreateVersion)
	})
	out := protocol.Sessions{Sessions: []string{}}
	for _, row := range part(rows, limit, offset) {
		out.Sessions = append(out.Sessions, row.Name.ID())
	}
	return out, nil
}

// getSession lists the runs of a session. Sampling sessions are not stored, so it lists none.
func getSession(c *call) (any, error) {
	row, err := c.session(c.PathValue("session"))
	if err != nil {
		return nil, err
	}
	out := protocol.Session{TrainingRunIDs: []string{}, SamplerIDs: []string{}}
	for _, run := range c.runs() {
		if run.State.Session == row.Name {
			out.TrainingRunIDs = append(out.TrainingRunIDs, run.Name.ID())
		}
	}
	return out, nil
}

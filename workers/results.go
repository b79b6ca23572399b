package workers

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"io"
	"strings"
	"time"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/wire"
)

const (
	uploadWithin = 12 * time.Hour
	maxConfig    = 4 << 20   // bytes of a configuration that is read
	maxHeader    = 100 << 20 // bytes of a safetensors header, the format's own limit
)

// complete registers the model that came of the attempt and ends the job, both
// or none.
func (d *Desk) complete(ctx context.Context, node string, view *projections.View, j job, r wire.Report) error {
	files, err := d.arrived(ctx, resultFolder(j, r.Attempt), r.Sizes)
	if err != nil {
		return err
	}
	if err := d.publishMetrics(ctx, j, files); err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	register, err := d.registration(ctx, view, j, r, files)
	if err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	name := domain.NewName(j.Name.Account(), "models", j.OutputModel)
	err = d.do(ctx, node, domain.Intend(domain.Models, name, register),
		domain.IntendJob(j.Name, domain.CompleteJob{Attempt: r.Attempt, StoppedEarly: r.Result.StoppedEarly, Output: name, Results: files}))
	if domain.CodeOf(err) == domain.AlreadyExists {
		err = free(d.World.View(), j)
	}
	if err != nil {
		return d.refuseResults(ctx, node, j, err)
	}
	return nil
}

// refuseResults ends a job whose results can be no model. Trouble that may
// pass, and that the attempt is over, are handed on.
func (d *Desk) refuseResults(ctx context.Context, node string, j job, err error) error {
	switch domain.CodeOf(err) {
	case domain.AlreadyExists, domain.DataLoss, domain.InvalidArgument, domain.FailedPrecondition:
		if over(err) {
			return err
		}
		if err := d.tell(ctx, node, j, domain.FailJob{Attempt: j.Life.Attempt, Status: domain.StatusOf(err)}); err != nil {
			return err
		}
		if err := d.Blobs.DeleteFolder(ctx, resultFolder(j, j.Life.Attempt)); err != nil {
			d.log.Warn("results that nobody can use stay in the bucket", "job", j.Name, "error", err)
		}
		return nil
	}
	return err
}

// registration describes the model by what its stored files say, and by what
// it was made from.
func (d *Desk) registration(ctx context.Context, view *projections.View, j job, r wire.Report, files domain.Files) (domain.RegisterModel, error) {
	source := j.BaseModel
	if source == "" {
		source = j.Adapter
	}
	from, err := ready(view, source)
	if err != nil {
		return domain.RegisterModel{}, err
	}
	register := domain.RegisterModel{Files: files, SourceJob: j.Name, CreatedBy: j.Life.CreatedBy}
	register.DisplayName = j.OutputModel
	register.ModelFacts = domain.ModelFacts{ModelType: from.State.ModelType, ParameterCount: from.State.ParameterCount, ContextLength: from.State.ContextLength, Embedding: from.State.Embedding}
	register.BaseModel = string(source)
	if r.Result.Adapter {
		register.Kind = domain.PEFTAddon
		if from.State.Kind == domain.PEFTAddon {
			register.BaseModel = from.State.BaseModel
		}
		return register, d.adapterFacts(ctx, files, &register.ModelFacts)
	}
	register.Kind = domain.BaseModel
	return register, d.modelFacts(ctx, files, &register.ModelFacts)
}

// adapterFacts are what an adapter_config.json says.
func (d *Desk) adapterFacts(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	var config struct {
		Rank    int             `json:"r"`
		Targets json.RawMessage `json:"target_modules"` // a list, or one pattern
	}
	if err := d.config(ctx, files, "adapter_config.json", &config); err != nil {
		return err
	}
	facts.LoraRank = config.Rank
	if err := json.Unmarshal(config.Targets, &facts.LoraTargets); err != nil && len(config.Targets) > 0 {
		facts.LoraTargets = nil // a pattern, which names none
	}
	return nil
}

// modelFacts are what a config.json and the headers of the weights say. What
// they leave out stays as it was in the model that was trained.
func (d *Desk) modelFacts(ctx context.Context, files domain.Files, facts *domain.ModelFacts) error {
	var config struct {
		ModelType string `json:"model_type"`
		Positions int    `json:"max_position_embeddings"`
	}
	if err := d.config(ctx, files, "config.json", &config); err != nil {
		return err
	}
	if config.ModelType != "" {
		facts.ModelType = config.ModelType
	}
	if config.Positions > 0 {
		facts.ContextLength = config.Positions
	}
	var parameters int64
	for name := range files.Sizes {
		if !strings.HasSuffix(name, ".safetensors") {
			continue
		}
		n, err := d.parameters(ctx, files.Folder+name)
		if err != nil {
			return err
		}
		parameters += n
	}
	if parameters > 0 {
		facts.ParameterCount = domain.Count(parameters)
	}
	return nil
}

func (d *Desk) config(ctx context.Context, files domain.Files, name string, config any) error {
	if _, ok := files.Sizes[name]; !ok {
		return domain.Faultf(domain.DataLoss, "the engine left no %s: its results are no model", name)
	}
	r, err := d.Blobs.Get(ctx, files.Folder+name)
	if err != nil {
		return err
	}
	defer r.Close()
	data, err := io.ReadAll(io.LimitReader(r, maxConfig))
	if err != nil {
		return err
	}
	if json.Unmarshal(data, config) != nil {
		return domain.Faultf(domain.DataLoss, "the %s that the engine left cannot be read", name)
	}
	return nil
}

// parameters counts the numbers in a safetensors file: 8 bytes of length,
// little-endian, then a JSON header that tells the shape of each tensor.
func (d *Desk) parameters(ctx context.Context, key string) (int64, error) {
	r, err := d.Blobs.Get(ctx, key)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	unreadable := domain.Faultf(domain.DataLoss, "the weights that the engine left cannot be read")
	var length uint64
	if err := binary.Read(r, binary.LittleEndian, &length); err != nil || length > maxHeader {
		return 0, unreadable
	}
	var header map[string]json.RawMessage
	if err := json.NewDecoder(io.LimitReader(r, int64(length))).Decode(&header); err != nil {
		return 0, unreadable
	}
	var sum int64
	for name, entry := range header {
		var tensor struct {
			Shape []int64 `json:"shape"`
		}
		if name == "__metadata__" {
			continue
		}
		if json.Unmarshal(entry, &tensor) != nil {
			return 0, unreadable
		}
		n := int64(1)
		for _, dimension := range tensor.Shape {
			n *= dimension
		}
		sum += n
	}
	return sum, nil
}

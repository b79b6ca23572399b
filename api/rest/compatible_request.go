package rest

import (
	"math"
	"strconv"
	"strings"

	"anneal/api/request"
	"anneal/api/routing"
	"anneal/api/wire"
	"anneal/domain"
	sealed "anneal/eventlog/secrets"
)

// trackerSecret is the ID of the secret with the API key for the tracker wandb. OpenAI takes this
// key from the settings of the organization.
const trackerSecret = "wandb-api-key"

const (
	wandb         = "wandb"
	auto          = "auto" // value of a hyperparameter that means the default
	graderType    = "evaluator"
	outputPrefix  = "ft-"
	maxResourceID = 63
	maxBatch      = 1 << 20
	maxBeta       = 100
)

// A fineTuning is a request for a fine-tuning job of the OpenAI API, and the settings of the job
// that it creates.
type fineTuning struct {
	*call
	p    *request.Params
	id   string // ID of the new job
	body FineTuningBody

	method     string // domain.MethodSupervised, MethodDPO or MethodReinforcement
	at         string // path of the hyperparameters in the request, followed by a dot
	config     domain.TrainingConfig
	beta       float64 // beta of DPO; 0 means the default
	dataset    string
	validation string
	evaluator  string
	tracker    *TrackerConfig
	options    domain.JobOptions

	// fields of the request that already have a violation; further violations of these fields are
	// left out
	reported []string
}

// read translates the request into settings of a job. It adds violations, and returns an error only
// if a secret cannot be read.
func (q *fineTuning) read() error {
	q.dataset = q.fileName("training_file", q.body.TrainingFile)
	q.validation = q.fileName("validation_file", q.body.ValidationFile)
	settings := q.readMethod()
	q.readHyperparameters(settings.Hyperparameters)
	if q.method == domain.MethodReinforcement {
		q.readGrader(settings.Grader)
	} else {
		q.p.Require(settings.Grader == nil, "method."+q.method+".grader", "is only for the method reinforcement: leave "+
			"it out")
	}
	q.p.Require(settings.ResponseFormat == nil, "method."+q.method+".response_format",
		"is not supported: leave it out, and let the evaluator score the format")
	q.p.Require(q.body.ValidationFile == "" || q.method != domain.MethodDPO, "validation_file",
		"is not supported by the method dpo: leave it out")
	q.p.Require(q.body.TrainingFile != "", "training_file", "is required: give the ID of a file")
	q.readModel()
	q.readOptions()
	return q.readIntegrations()
}

// fileName returns the name of the dataset to which the field refers by ID or resource name. If it
// does not exist, fileName adds a violation and records the field in q.reported.
func (q *fineTuning) fileName(field, ref string) string {
	if ref == "" {
		return ""
	}
	name := domain.Name(ref)
	if domain.ValidID(ref) {
		name = domain.NewName(q.Account, domain.Datasets.Collection, ref)
	}
	if _, ok := q.View().Datasets.Get(name); !ok || name.Account() != q.Account {
		q.p.Require(false, field, "there is no file %s: upload it with POST /v1/files, or correct the ID", wire.Quote(ref))
		q.reported = append(q.reported, field)
	}
	return string(name)
}

// readMethod sets the method, and the path of the hyperparameters, from the request. It returns the
// settings of the method, and adds violations.
func (q *fineTuning) readMethod() (settings FineTuningSettings) {
	q.method, q.at = domain.MethodSupervised, "hyperparameters."
	m := q.body.Method
	if m == nil {
		settings.Hyperparameters = q.body.Hyperparameters
		return settings
	}
	byType := map[string]*FineTuningSettings{domain.MethodSupervised: m.Supervised, domain.MethodDPO: m.DPO,
		domain.MethodReinforcement: m.Reinforcement}
	if _, known := byType[m.Type]; known {
		q.method = m.Type
	} else {
		q.p.Require(false, "method.type", "must be supervised, dpo or reinforcement, not %s", wire.Quote(m.Type))
	}
	q.at = "method." + q.method + ".hyperparameters."
	for name, given := range byType {
		q.p.Require(given == nil || name == q.method, "method."+name, "is not supported by the method %s: leave it "+
			"out", q.method)
	}
	if given := byType[q.method]; given != nil {
		settings = *given
	}
	if q.body.Hyperparameters != nil {
		q.p.Require(settings.Hyperparameters == nil && q.method == domain.MethodSupervised, "hyperparameters",
			"cannot be combined with method: move it to method.%s.hyperparameters", q.method)
		settings.Hyperparameters, q.at = q.body.Hyperparameters, "hyperparameters."
	}
	return settings
}

func (q *fineTuning) readHyperparameters(h *FineTuningHyperparameters) {
	if h == nil {
		return
	}
	q.config.Epochs = int(q.number("n_epochs", h.Epochs, domain.MaxEpochs, true))
	batch := int(q.number("batch_size", h.BatchSize, maxBatch, true))
	q.options.LearningRateMultiplier = q.number("learning_rate_multiplier", h.LearningRateMultiplier,
		domain.MaxLearningScale, false)
	if q.method == domain.MethodDPO {
		q.options.BatchSizeSamples = batch // DPOTraining has no field for a batch size in samples
		q.beta = q.number("beta", h.Beta, maxBeta, false)
	} else {
		q.config.BatchSizeSamples = batch
		q.p.Require(isDefault(h.Beta), q.at+"beta", "is only for the method dpo: leave it out")
	}
	for _, other := range []struct {
		name  string
		value any
	}{{"compute_multiplier", h.ComputeMultiplier}, {"eval_interval", h.EvalInterval}, {"eval_samples", h.EvalSamples},
		{"reasoning_effort", h.ReasoningEffort}} {
		q.p.Require(isDefault(other.value), q.at+other.name, "is not supported: leave it out")
	}
}

// isDefault reports whether the value of a hyperparameter means the default.
func isDefault(value any) bool { return value == nil || value == auto || value == "default" }

// number returns the value of a hyperparameter, which must be above 0 and at most highest. It
// returns 0 for the default. whole states whether the value must be a whole number.
func (q *fineTuning) number(name string, value any, highest float64, whole bool) float64 {
	if value == nil || value == auto {
		return 0
	}
	n, isNumber := value.(float64)
	if isNumber && n > 0 && n <= highest && (!whole || n == math.Trunc(n)) {
		return n
	}
	kind, given := "number above 0 and at most", wire.KindName(value)
	if whole {
		kind = "whole number from 1 to"
	}
	if isNumber {
		given = strconv.FormatFloat(n, 'g', -1, 64)
	} else if text, isText := value.(string); isText {
		given = wire.Quote(text)
	}
	q.p.Require(false, q.at+name, "must be auto, or a %s %v, not %s", kind, highest, given)
	return 0
}

// readGrader reads the grader of a reinforcement job, {"type": "evaluator", "evaluator": ID}.
func (q *fineTuning) readGrader(value any) {
	const field = "method.reinforcement.grader"
	grader, isObject := value.(map[string]any)
	kind, _ := grader["type"].(string)
	ref, isText := grader["evaluator"].(string)
	switch {
	case value == nil:
		q.p.Require(false, field, "is required: give {\"type\": \"evaluator\", \"evaluator\": ID}")
	case !isObject:
		q.p.Require(false, field, "must be an object, not %s", wire.KindName(value))
	case kind != graderType:
		q.p.Require(false, field+".type", "must be evaluator, not %s: create an evaluator that computes the score",
			wire.Quote(kind))
	case !isText || len(grader) != 2:
		q.p.Require(false, field, "must be {\"type\": \"evaluator\", \"evaluator\": ID}")
	case domain.ValidID(ref):
		ref = string(domain.NewName(q.Account, domain.Evaluators.Collection, ref))
	}
	q.evaluator = ref
}

// readModel sets the model that the job trains, from any name that an inference request accepts,
// and the name of the model that the job creates.
func (q *fineTuning) readModel() {
	if q.body.Model == "" {
		q.p.Require(false, "model", "is required: give the name of a model")
		return
	}
	row, ok := routing.UsableModel(q.Call, q.body.Model)
	if !ok {
		// the name may be that of a deployment, an addon or an alias
		if target, err := routing.Resolve(q.Call, q.body.Model); err == nil {
			// an alias may refer to a model that the account may not train
			row, ok = q.UsableModel(q.Account, string(target.ModelName(q.View())))
		}
	}
	if !ok {
		q.p.Require(false, "model", "%s is not a model that accounts/%s may use: list the models with GET /v1/models",
			wire.Quote(q.body.Model), q.Account)
		return
	}
	if row.State.Kind == domain.PEFTAddon {
		q.config.WarmStartFrom = string(row.Name)
	} else {
		q.config.BaseModel = string(row.Name)
	}
	q.config.OutputModel = outputModel(row.Name.ID(), q.body.Suffix, q.id[len(q.id)-8:])
}

// outputModel returns the ID of the model that a job creates. It consists of the base model's ID,
// the suffix in the request, and a unique part.
func outputModel(base, suffix, unique string) string {
	end := "-" + unique
	if suffix = slug(suffix); suffix != "" {
		end = "-" + suffix + end
	}
	base = slug(strings.TrimPrefix(base, outputPrefix))
	// if the suffix is too long, which is a violation, no space is left for the base model's ID
	space := max(0, maxResourceID-len(outputPrefix)-len(end))
	return outputPrefix + strings.Trim(base[:min(len(base), space)], "-") + end
}

// slug returns text in lower case, with all characters that resource IDs cannot have replaced by
// hyphens.
func slug(text string) string {
	text = strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
			return r
		}
		return '-'
	}, strings.ToLower(text))
	return strings.Trim(text, "-")
}

func (q *fineTuning) readOptions() {
	suffix := q.body.Suffix
	q.p.Require(suffix == "" || slug(suffix) != "", "suffix", "must contain a letter from a to z or a digit")
	q.options.Suffix, q.options.Metadata, q.options.Seed = suffix, q.body.Metadata, q.body.Seed
	// clients of the OpenAI API expect to send requests to the new model as soon as the job has
	// succeeded
	q.options.LoadAddon = true
	if q.options.Seed == nil {
		random, _ := strconv.ParseUint(q.NewUUID("seed")[:8], 16, 32) // a UUID begins with 8 hexadecimal digits
		seed := int(random % (domain.MaxSeed + 1))
		q.options.Seed = &seed
	}
}

// readIntegrations sets the tracker of the job. It reads the tracker's API key from a secret, but
// only if the request has no violations.
func (q *fineTuning) readIntegrations() error {
	if len(q.body.Integrations) == 0 {
		return nil
	}
	q.p.Require(len(q.body.Integrations) == 1, "integrations", "must have at most one entry, not %d",
		len(q.body.Integrations))
	one, field := q.body.Integrations[0], "integrations[0]"
	if one.Type != wandb {
		q.p.Require(false, field+".type", "must be wandb, not %s", wire.Quote(one.Type))
		return nil
	}
	if one.WandB == nil {
		q.p.Require(false, field+".wandb", "is required: the project at Weights & Biases")
		return nil
	}
	q.p.Require(one.WandB.Name == "", field+".wandb.name", "is not supported: leave it out")
	q.p.Require(len(one.WandB.Tags) == 0, field+".wandb.tags", "is not supported: leave it out")
	// the value of the secret replaces APIKey if the request has no violations
	q.tracker = &TrackerConfig{Enabled: true, Project: one.WandB.Project, Entity: one.WandB.Entity, APIKey: trackerSecret}
	name := domain.NewName(q.Account, domain.Secrets.Collection, trackerSecret)
	row, ok := q.View().Secrets.Get(name)
	q.p.Require(ok && row.State.HasValue(), field, "needs the API key for the tracker: store it in the secret %s first",
		name)
	if len(q.p.Violations) > 0 {
		return nil
	}
	value, err := q.Sealer.Open(q.Ctx, secretReader(q.call, sealed.CopyTrackerKey, ""), name, row.State.Value)
	q.tracker.APIKey = value.Reveal()
	return err
}

func (q *fineTuning) supervisedJob() *SupervisedJob {
	return &SupervisedJob{SupervisedSpec: domain.SupervisedSpec{TrainingConfig: q.config, DisplayName: q.body.Suffix,
		Dataset: q.dataset, EvaluationDataset: q.validation}, TrackerConfig: q.tracker}
}

func (q *fineTuning) dpoJob() *DPOJob {
	job := &DPOJob{DPOSpec: domain.DPOSpec{DisplayName: q.body.Suffix, Dataset: q.dataset},
		TrainingConfig: dpoTraining(q.config), TrackerConfig: q.tracker}
	if q.beta > 0 {
		job.LossConfig = &domain.LossConfig{Method: domain.LossDPO, DPO: &domain.DPOLoss{Beta: q.beta}}
	}
	return job
}

func (q *fineTuning) reinforcementJob() *ReinforcementJob {
	return &ReinforcementJob{ReinforcementSpec: domain.ReinforcementSpec{DisplayName: q.body.Suffix, Dataset: q.dataset,
		EvaluationDataset: q.validation, Evaluator: q.evaluator}, TrainingConfig: TrainingConfig{TrainingConfig: q.config},
		TrackerConfig: q.tracker}
}

// fieldOf returns the field of the request from which a field of the job was set.
func (q *fineTuning) fieldOf(field string) string {
	field = strings.TrimPrefix(strings.TrimPrefix(field, "trainingConfig."), "options.")
	switch field {
	case "dataset":
		return "training_file"
	case "evaluationDataset":
		return "validation_file"
	case "evaluator":
		return "method.reinforcement.grader.evaluator"
	case "baseModel", "warmStartFrom":
		return "model"
	case "outputModel", "displayName":
		return "suffix"
	case "epochs":
		return q.at + "n_epochs"
	case "batchSizeSamples":
		return q.at + "batch_size"
	case "learningRateMultiplier":
		return q.at + "learning_rate_multiplier"
	case "lossConfig.dpo.beta":
		return q.at + "beta"
	case "trackerConfig.apiKey":
		return "integrations[0]"
	}
	if name, ok := strings.CutPrefix(field, "trackerConfig."); ok {
		return "integrations[0].wandb." + name
	}
	return field
}

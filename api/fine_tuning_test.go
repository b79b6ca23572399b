package api

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/projections/live"
)

const fineTuningPath = "/v1/fine_tuning/jobs"

// fineTune creates a fine-tuning job and returns it. settings are the fields of the body besides
// model and training_file.
func (s *harness) fineTune(file, settings string) map[string]any {
	s.Helper()
	a := s.call("POST", fineTuningPath, "user",
		fmt.Sprintf(`{"model": %q, "training_file": %q%s}`, publicBase, file, settings))
	require.Equal(s, http.StatusOK, a.status, "%s", a.body)
	return a.json(s)
}

// TestFineTuningMethods checks for each method which job a request becomes, and that the response
// shows the settings of the request.
func TestFineTuningMethods(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(anEvaluator)
	chats, pairs, prompts := s.file("chats.jsonl", chatRows), s.file("pairs.jsonl", pairRows),
		s.file("prompts.jsonl", promptRows)
	t.Run("supervised", func(t *testing.T) {
		job := s.fineTune(chats, fmt.Sprintf(`, "validation_file": %q, "suffix": "Capitals of Peru", "seed": 7,
			"metadata": {"team": "a"}, "method": {"type": "supervised", "supervised": {"hyperparameters":
			{"n_epochs": 3, "batch_size": 4, "learning_rate_multiplier": 0.5}}}`, chats))
		row, ok := s.world.View().Job(domain.NewName("acme", "supervisedFineTuningJobs", job["id"].(string)))
		require.True(t, ok)
		spec := row.State.Spec()
		require.Equal(t, "accounts/acme/datasets/"+chats, spec.Dataset)
		require.Equal(t, spec.Dataset, spec.EvaluationDataset)
		require.Equal(t, publicBase, spec.Config.BaseModel)
		require.Equal(t, []any{3, 4, 0.5, 7}, []any{spec.Config.Epochs, spec.Config.BatchSizeSamples,
			spec.LearningRateMultiplier, *spec.Seed})
		require.Regexp(t, `^ft-anneal-base-capitals-of-peru-[0-9a-f]{8}$`, spec.Config.OutputModel)
		require.Equal(t, []any{"fine_tuning.job", "validating_files", publicBase, chats, chats, "Capitals of Peru", 7.0, nil,
			nil, "acme"}, []any{job["object"], job["status"], job["model"], job["training_file"], job["validation_file"],
			job["user_provided_suffix"], job["seed"], job["fine_tuned_model"], job["error"], job["organization_id"]})
		require.Equal(t, map[string]any{"team": "a"}, job["metadata"])
		settings := map[string]any{"n_epochs": 3.0, "batch_size": 4.0, "learning_rate_multiplier": 0.5}
		require.Equal(t, settings, job["hyperparameters"])
		require.Equal(t, map[string]any{"type": "supervised", "supervised": map[string]any{"hyperparameters": settings}},
			job["method"])
	})
	t.Run("hyperparameters beside method, and defaults", func(t *testing.T) {
		job := s.fineTune(chats, `, "hyperparameters": {"n_epochs": "auto", "batch_size": null}, "suffix": null`)
		require.Equal(t, map[string]any{"n_epochs": 1.0, "batch_size": "auto", "learning_rate_multiplier": "auto"},
			job["hyperparameters"])
		require.NotNil(t, job["seed"], "a seed is generated")
	})
	t.Run("dpo", func(t *testing.T) {
		job := s.fineTune(pairs, `, "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.2, "batch_size": 2}}}`)
		row, ok := s.world.View().Job(domain.NewName("acme", "dpoJobs", job["id"].(string)))
		require.True(t, ok)
		spec := row.State.Spec()
		require.Equal(t, []any{0.2, 2}, []any{spec.Loss.DPO.Beta, spec.Config.BatchSizeSamples})
		require.EqualValues(t, 0.2, job["hyperparameters"].(map[string]any)["beta"])
	})
	t.Run("reinforcement", func(t *testing.T) {
		job := s.fineTune(prompts, `, "method": {"type": "reinforcement", "reinforcement": {"grader": {"type":
			"evaluator", "evaluator": "exact"}, "hyperparameters": {"n_epochs": 2, "reasoning_effort": "default"}}}`)
		row, ok := s.world.View().Job(domain.NewName("acme", "reinforcementFineTuningJobs",
			job["id"].(string)))
		require.True(t, ok)
		require.Equal(t, "accounts/acme/evaluators/exact", row.State.Spec().Evaluator)
		require.Equal(t, map[string]any{"type": "evaluator", "evaluator": "exact"},
			job["method"].(map[string]any)["reinforcement"].(map[string]any)["grader"])
	})
	t.Run("from an addon, by its short name", func(t *testing.T) {
		s.set(anAddon)
		a := s.call("POST", fineTuningPath, "user", fmt.Sprintf(`{"model": "polite", "training_file": %q}`, chats))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, "polite", a.json(t)["model"])
		row, _ := s.world.View().Job(domain.NewName("acme", "supervisedFineTuningJobs", a.json(t)["id"].(string)))
		require.Equal(t, "accounts/acme/models/polite", row.State.Spec().Config.WarmStartFrom)
	})
	t.Run("the model of a deployment", func(t *testing.T) {
		s.deploy("serving", 1)
		a := s.call("POST", fineTuningPath, "user", fmt.Sprintf(`{"model": "serving", "training_file": %q}`, chats))
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, publicBase, a.json(t)["model"])
	})
}

// TestFineTuningWithTracker checks that the integration wandb becomes the tracker of the job, with
// the key of the account's secret, and that the key is never shown.
func TestFineTuningWithTracker(t *testing.T) {
	s := newHarness(t, request.Limits{})
	file := s.file("chats.jsonl", chatRows)
	const settings = `, "integrations": [{"type": "wandb", "wandb": {"project": "capitals", "entity": "acme"}}]`
	body := fmt.Sprintf(`{"model": %q, "training_file": %q%s}`, publicBase, file, settings)
	a := s.call("POST", fineTuningPath, "user", body)
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "integrations[0]: needs the API key for the tracker")
	require.Contains(t, string(a.body), "accounts/acme/secrets/wandb-api-key")

	created := s.call("POST", "/v1/accounts/acme/secrets", "admin",
		`{"name": "wandb-api-key", "keyName": "WANDB_API_KEY", "value": "not-to-be-shown"}`)
	require.Equal(t, http.StatusOK, created.status, "%s", created.body)
	a = s.call("POST", fineTuningPath, "user", body)
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.NotContains(t, string(a.body), "not-to-be-shown")
	require.Equal(t, []any{map[string]any{"type": "wandb", "wandb": map[string]any{"project": "capitals",
		"entity": "acme"}}}, a.json(t)["integrations"])
	name := domain.NewName("acme", "supervisedFineTuningJobs", a.json(t)["id"].(string))
	row, _ := s.world.View().Job(name)
	tracker := row.State.Spec().Tracker
	require.True(t, tracker.Enabled)
	key, err := s.vault.Open(t.Context(), name, *tracker.APIKey)
	require.NoError(t, err)
	require.Equal(t, "not-to-be-shown", key.Reveal())

	a = s.call("POST", fineTuningPath, "user", strings.Replace(body, `, "entity": "acme"`, "", 1))
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, []any{map[string]any{"type": "wandb", "wandb": map[string]any{"project": "capitals"}}},
		a.json(t)["integrations"])
	name = domain.NewName("acme", "supervisedFineTuningJobs", a.json(t)["id"].(string))
	row, _ = s.world.View().Job(name)
	require.Empty(t, row.State.Spec().Tracker.Entity)
}

// TestFineTuningViolations checks that one response rejects all invalid settings of OpenAI's
// fine-tuning API, and all that anneal has no equivalent of, each with the name of its field.
func TestFineTuningViolations(t *testing.T) {
	s := newHarness(t, request.Limits{})
	chats, pairs := s.file("chats.jsonl", chatRows), s.file("pairs.jsonl", pairRows)
	const standard = `"method": {"type": "reinforcement", "reinforcement": {"grader": `
	for _, one := range []struct {
		body string
		says []string
	}{
		{`{}`, []string{"model: is required", "training_file: is required"}},
		{`{"model": "gpt-4o-mini", "training_file": "none", "validation_file": "neither", "suffix": "---", "seed": -1,
			"n_epochs": 3, "hyperparameters": {"n_epochs": 0, "batch_size": "many", "learning_rate_multiplier": -1,
			"beta": 0.1, "eval_samples": 5, "colour": "red"}}`,
			[]string{`model: "gpt-4o-mini" is not a model that accounts/acme may use`,
				`training_file: there is no file "none"`, `validation_file: there is no file "neither"`,
				"suffix: must contain a letter", "seed: must be from 0 to 2147483647", "n_epochs: is not a field of this object",
				"hyperparameters.n_epochs: must be auto, or a whole number from 1 to 1000, not 0",
				`hyperparameters.batch_size: must be auto, or a whole number from 1`,
				"hyperparameters.learning_rate_multiplier: must be auto, or a number above 0 and at most 1000, not -1",
				"hyperparameters.beta: is only for the method dpo", "hyperparameters.eval_samples: is not supported",
				"hyperparameters.colour: is not a field of this object"}},
		{`{"model": "` + publicBase + `", "training_file": "` + chats + `", "validation_file": "` + pairs + `",
			"method": {"type": "dpo", "supervised": {}, "dpo": {"grader": {"type": "python"}, "response_format": {}}},
			"hyperparameters": {"n_epochs": 2}, "suffix": "` + strings.Repeat("s", 41) + `"}`,
			[]string{"validation_file: is not supported by the method dpo", "method.supervised: is not supported by the " +
				"method dpo",
				"method.dpo.grader: is only for the method reinforcement", "method.dpo.response_format: is not supported",
				"hyperparameters: cannot be combined with method",
				"training_file: accounts/acme/datasets/" + chats + " has chat rows",
				"suffix: must have at most 40 characters, not 41"}},
		{`{"model": "accounts/default/models/anneal-base", "training_file": "` + chats + `", "suffix": "` +
			strings.Repeat("s", 64) + `"}`, []string{"suffix: must have at most 40 characters, not 64"}},
		{`{"model": "` + publicBase + `", "training_file": "` + chats + `", ` + standard +
			`{"type": "python", "source": "…"}, "hyperparameters": {"compute_multiplier": 2, "eval_interval": 5,
			"reasoning_effort": "high"}}}}`, []string{`method.reinforcement.grader.type: must be evaluator, not "python"`,
			"method.reinforcement.hyperparameters.compute_multiplier: is not supported", "eval_interval: is not supported",
			"reasoning_effort: is not supported"}},
		{`{"model": "` + publicBase + `", "training_file": "` + chats + `", ` + standard +
			`{"type": "evaluator", "evaluator": "none"}}}}`, []string{"method.reinforcement.grader.evaluator: "}},
		{`{"model": "` + publicBase + `", "training_file": "` + chats + `", "method": {"type": "ppo"},
			"integrations": [{"type": "wandb", "wandb": {"project": "p", "name": "n", "tags": ["t"]}}, {"type": "mlflow"}]}`,
			[]string{`method.type: must be supervised, dpo or reinforcement, not "ppo"`, "integrations: must have at most one",
				"integrations[0].wandb.name: is not supported", "integrations[0].wandb.tags: is not supported",
				"integrations[0]: needs the API key"}},
		{`{"model": "` + publicBase + `", "training_file": "` + chats + `", "integrations": [{"type": "mlflow"}],
			"metadata": {"` + strings.Repeat("k", 65) + `": "v"}}`,
			[]string{`integrations[0].type: must be wandb, not "mlflow"`, "metadata: a key must have at most 64 characters"}},
	} {
		a := s.call("POST", fineTuningPath, "user", one.body)
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", one.body, a.body)
		message := inferenceMessage(t, a)
		for _, text := range one.says {
			require.Contains(t, message, text, one.body)
		}
		require.NotContains(t, message, "trainingConfig", "fields have the names of the request")
		require.NotContains(t, message, "options.")
		require.NotContains(t, message, "is not a dataset of")
	}
	require.Empty(t, s.call("GET", fineTuningPath, "user", "").json(t)["data"])
}

// TestFineTuningOfAnAliasedModel checks that the response to a request that names an alias of
// another account's deployment does not disclose the deployment's model, unless the model is
// public.
func TestFineTuningOfAnAliasedModel(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(register("accounts/acme/models/hidden", false))
	s.deploy("d1", 1, func(d *domain.DeploymentSpec) {
		d.BaseModel, d.Aliases = "accounts/acme/models/hidden", []string{"smart"}
	})
	s.deploy("d2", 1, func(d *domain.DeploymentSpec) { d.Aliases = []string{"open"} })
	r := s.form("/v1/files", "other", "file", "rows.jsonl", strings.NewReader(chatRows), "purpose=fine-tune")
	file := s.send(r).json(t)["id"]
	a := s.call("POST", fineTuningPath, "other", fmt.Sprintf(`{"model": "smart", "training_file": %q}`, file))
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	require.Contains(t, string(a.body), `\"smart\" is not a model that accounts/other may use`)
	require.NotContains(t, string(a.body), "hidden")
	a = s.call("POST", fineTuningPath, "other", fmt.Sprintf(`{"model": "open", "training_file": %q}`, file))
	require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	require.Equal(t, publicBase, a.json(t)["model"])
}

// TestFineTuningJobsByMetadata checks which jobs a list with a metadata filter contains.
func TestFineTuningJobsByMetadata(t *testing.T) {
	s := newHarness(t, request.Limits{})
	file := s.file("chats.jsonl", chatRows)
	one := s.fineTune(file, `, "metadata": {"team_name": "a", "stage": "test"}`)["id"]
	two := s.fineTune(file, `, "metadata": {"team_name": "b", "stage": "test"}`)["id"]
	none := s.fineTune(file, "")["id"]
	for query, want := range map[string][]any{
		"":                                    {none, two, one},
		"?metadata[team_name]=a":              {one},
		"?metadata%5Bstage%5D=test":           {two, one},
		"?metadata[stage]=test&limit=1":       {two},
		"?metadata[stage]=test&metadata[x]=y": {},
		"?metadata[team_name]=c":              {},
		"?metadata=null":                      {none},
	} {
		got := []any{}
		a := s.call("GET", fineTuningPath+query, "user", "")
		require.Equal(t, http.StatusOK, a.status, "%s: %s", query, a.body)
		for _, job := range a.json(t)["data"].([]any) {
			got = append(got, job.(map[string]any)["id"])
		}
		require.Equal(t, want, got, query)
	}
	for query, message := range map[string]string{
		"?metadata=a":                 "metadata: must be null, or be written metadata[KEY]=VALUE",
		"?metadata[a]=b&metadata[a]=": "metadata[a]: is given 2 times",
		"?colour[a]=b": "is not a query parameter of this operation; valid parameters: after, asOf, limit, " +
			"metadata",
	} {
		a := s.call("GET", fineTuningPath+query, "user", "")
		require.Equal(t, http.StatusBadRequest, a.status, "%s: %s", query, a.body)
		require.Contains(t, string(a.body), message)
	}
}

// TestFineTuningLife checks the statuses of a job, its events and its checkpoints from its creation
// to its end.
func TestFineTuningLife(t *testing.T) {
	s := newHarness(t, request.Limits{})
	job := s.fineTune(s.file("chats.jsonl", chatRows), "")
	id := job["id"].(string)
	name, path := domain.NewName("acme", "supervisedFineTuningJobs", id), fineTuningPath+"/"+id
	status := func() any { return s.call("GET", path, "user", "").json(t)["status"] }
	change := func(verb string, want any) {
		t.Helper()
		a := s.call("POST", path+"/"+verb, "user", "")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		require.Equal(t, want, a.json(t)["status"])
	}
	require.Equal(t, "validating_files", status())
	s.do(domain.IntendJob(name, domain.StartValidation{}), domain.IntendJob(name, domain.QueueJob{}))
	require.Equal(t, "queued", status())
	change("pause", "paused")
	change("resume", "queued")
	s.do(domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"}}))
	require.Equal(t, "running", status())
	s.world.Live().Report(name, live.Progress{Made: madeAt(s, name), Attempt: 1, Step: 1, Steps: 4, Time: s.clock.tick()},
		live.MetricRow{Step: 1, Steps: 4, Time: s.clock.tick(), Values: map[string]float64{"train/loss": 1.25,
			"train/grad_norm": 0.5}})
	for _, step := range []int{2, 4} {
		s.do(domain.IntendJob(name, domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Step: step, Attempt: 1,
			Time: s.clock.tick(), Files: storedCheckpoint(s, name, step), Metrics: map[string]float64{"train/loss": 1,
				"eval/loss": 2}}}))
	}
	row, _ := s.world.View().Job(name)
	output := domain.NewName("acme", "models", row.State.Spec().Config.OutputModel)
	s.do(register(output, false))
	results := domain.Files{Prefix: "results/", Sizes: map[string]int64{"adapter_config.json": 2}}
	s.do(domain.IntendJob(name, domain.CompleteJob{Attempt: 1, Output: output, Results: results,
		Progress: &domain.JobProgress{Step: 5, Steps: 5, Epoch: 1, Tokens: 640,
			Metrics: map[string]float64{"train/loss": 0.5}}}))
	done := s.call("GET", path, "user", "").json(t)
	require.Equal(t, []any{"succeeded", output.ID(), 640.0}, []any{done["status"], done["fine_tuned_model"],
		done["trained_tokens"]})
	require.NotNil(t, done["finished_at"])

	var messages []string
	ids := map[string]bool{}
	for after, more := "", true; more; {
		page := s.call("GET", path+"/events?limit=3&after="+after, "user", "").json(t)
		for _, one := range page["data"].([]any) {
			e := one.(map[string]any)
			require.Equal(t, "fine_tuning.job.event", e["object"])
			after = e["id"].(string)
			require.False(t, ids[after], "each event once")
			ids[after] = true
			messages = append([]string{e["message"].(string)}, messages...)
		}
		more = page["has_more"].(bool)
	}
	require.Equal(t, "Created fine-tuning job: "+id, messages[0])
	for _, one := range []string{"The job is paused: paused by a user", "Fine-tuning job started, attempt 1",
		"Step 1/4: training loss=1.2500", "Checkpoint created at step 4"} {
		require.Contains(t, messages, one)
	}
	require.Equal(t, "The job has successfully completed. New fine-tuned model created: "+output.ID(),
		messages[len(messages)-1])

	page := s.call("GET", path+"/checkpoints?limit=2", "user", "").json(t)
	require.Equal(t, []any{true, "ftckpt-1-5", "ftckpt-1-4"}, []any{page["has_more"], page["first_id"], page["last_id"]})
	first := page["data"].([]any)[0].(map[string]any)
	require.Equal(t, []any{output.ID(), 5.0, id}, []any{first["fine_tuned_model_checkpoint"], first["step_number"],
		first["fine_tuning_job_id"]})
	second := page["data"].([]any)[1].(map[string]any)
	require.Equal(t, string(name)+"/checkpoints/1-4", second["fine_tuned_model_checkpoint"])
	require.Equal(t, map[string]any{"step": 4.0, "train_loss": 1.0, "full_valid_loss": 2.0}, second["metrics"])
	page = s.call("GET", path+"/checkpoints?after=ftckpt-1-4", "user", "").json(t)
	require.Len(t, page["data"], 1)

	for _, verb := range []string{"cancel", "pause", "resume"} {
		a := s.call("POST", path+"/"+verb, "user", "")
		require.Equal(t, http.StatusBadRequest, a.status, "%s of a job that has ended: %s", verb, a.body)
	}
}

// TestFineTuningListsJobsOfAllKinds checks that the list has the jobs of the three kinds, however
// they were created, newest first, and that an ID that two jobs have is refused.
func TestFineTuningListsJobsOfAllKinds(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.set(aDataset + anEvaluator)
	create := func(collection, singular, id, settings string) {
		s.clock.tick()
		a := s.call("POST", "/v1/accounts/acme/"+collection+"?"+singular+"Id="+id, "user",
			`{"dataset": "accounts/acme/datasets/rows", `+settings+`}`)
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
	}
	create("supervisedFineTuningJobs", "supervisedFineTuningJob", "one", `"outputModel": "m-one"`)
	create("dpoJobs", "dpoJob", "two", `"trainingConfig": {"outputModel": "m-two"}`)
	create("reinforcementFineTuningJobs", "reinforcementFineTuningJob", "three",
		`"evaluator": "accounts/acme/evaluators/exact", "trainingConfig": {"outputModel": "m-three"}`)
	var ids []any
	for _, one := range s.call("GET", fineTuningPath, "user", "").json(t)["data"].([]any) {
		ids = append(ids, one.(map[string]any)["id"])
	}
	require.ElementsMatch(t, []any{"three", "two", "one"}, ids)
	require.Empty(t, s.call("GET", fineTuningPath, "other", "").json(t)["data"], "jobs of another account")
	require.Nil(t, s.call("GET", fineTuningPath+"/one", "user", "").json(t)["seed"])

	create("dpoJobs", "dpoJob", "one", `"trainingConfig": {"outputModel": "m-four"}`)
	ids = nil
	for after, more := "", true; more; {
		page := s.call("GET", fineTuningPath+"?limit=1&after="+after, "user", "").json(t)
		for _, one := range page["data"].([]any) {
			after = one.(map[string]any)["id"].(string)
			ids = append(ids, after)
		}
		more = page["has_more"].(bool)
		require.LessOrEqual(t, len(ids), 4, "pages end although two jobs have one ID: %v", ids)
	}
	a := s.call("POST", fineTuningPath+"/one/cancel", "user", "")
	require.Equal(t, http.StatusBadRequest, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "2 jobs of different kinds have the ID one")
}

// TestFineTuningMetricsAfterRestart checks that the events of a job whose metrics the server does not
// have in memory contain those of the metrics file.
func TestFineTuningMetricsAfterRestart(t *testing.T) {
	s := newHarness(t, request.Limits{})
	id := s.fineTune(s.file("chats.jsonl", chatRows), "")["id"].(string)
	name := domain.NewName("acme", "supervisedFineTuningJobs", id)
	s.putFile(blobs.MetricsFile(name, s.world.Lookup(name).CreateEvent),
		`{"step": 1, "epoch": 0.5, "time": "2030-02-01T00:00:00Z", "train/loss": 0.75}`+"\n"+
			`{"step": 2, "epoch": 1, "time": "2030-02-01T00:00:00.5Z", "train/loss": 0.5, "learning_rate": 0.1}`+"\n"+
			`{"step": 3, "epo`)
	events := s.call("GET", fineTuningPath+"/"+id+"/events?limit=2", "user", "").json(t)["data"].([]any)
	require.Len(t, events, 2)
	require.Equal(t, "Step 2/2: training loss=0.5000", events[0].(map[string]any)["message"])
	require.Equal(t, map[string]any{"step": 2.0, "total_steps": 2.0, "train_loss": 0.5},
		events[0].(map[string]any)["data"])
	require.Equal(t, "Step 1/2: training loss=0.7500", events[1].(map[string]any)["message"])

	// The worker reports further steps. The second of them is dropped between two pages.
	report := func(steps ...int) {
		s.world.Live().Forget(name)
		for _, step := range steps {
			s.world.Live().Report(name, live.Progress{Made: madeAt(s, name), Attempt: 1, Step: step, Steps: 9},
				live.MetricRow{Step: step, Steps: 9, Time: time.Date(2030, 3, step, 0, 0, 0, 0, time.UTC)})
		}
	}
	messages := func(query string) (all []any) {
		a := s.call("GET", fineTuningPath+"/"+id+"/events?"+query, "user", "")
		require.Equal(t, http.StatusOK, a.status, "%s", a.body)
		for _, e := range a.json(t)["data"].([]any) {
			all = append(all, e.(map[string]any)["message"])
		}
		return all
	}
	report(5, 6, 7)
	require.Equal(t, []any{"Step 7/9", "Step 6/9"}, messages("limit=2"))
	report(5, 7)
	require.Equal(t, []any{"Step 5/9", "Step 2/9: training loss=0.5000"}, messages("limit=2&after=ftevent-step-6"))
}

// TestFineTuningEventsOfALongJob checks that the newest steps are listed when the metrics file is
// so large that only its end is read.
func TestFineTuningEventsOfALongJob(t *testing.T) {
	s := newHarness(t, request.Limits{})
	id := s.fineTune(s.file("chats.jsonl", chatRows), "")["id"].(string)
	name := domain.NewName("acme", "supervisedFineTuningJobs", id)
	var rows strings.Builder
	for step := range 100 {
		fmt.Fprintf(&rows, `{"step": %d, "time": "2030-02-01T00:00:00Z", "train/loss": 0.5, "note": %q}`+"\n", step+1,
			strings.Repeat("n", 100<<10))
	}
	s.putFile(blobs.MetricsFile(name, s.world.Lookup(name).CreateEvent), rows.String())
	events := s.call("GET", fineTuningPath+"/"+id+"/events?limit=2", "user", "").json(t)["data"].([]any)
	require.Equal(t, "Step 100/100: training loss=0.5000", events[0].(map[string]any)["message"])
	require.Equal(t, "Step 99/100: training loss=0.5000", events[1].(map[string]any)["message"])
}

package tracking

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"anneal/domain"
)

// wandb is a tracker with the interface of the Weights & Biases SDK. The GraphQL mutation
// upsertBucket creates a run, and file_stream writes lines of the run's files. Such a request has
// the number of its first line, so a repeated request writes the same content to the same lines.
type wandb struct{ client }

// upsertBucket is the mutation of the SDK, reduced to the variables that this package uses.
const upsertBucket = `mutation UpsertBucket($name: String, $project: String, $entity: String, $displayName: String,
  $config: JSONString, $jobType: String) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, displayName: $displayName,
    config: $config, jobType: $jobType}) {
    bucket { id name displayName historyLineCount project { name entity { name } } }
    inserted
  }
}`

// Names of a run's files, and exit codes. From the exit code the tracker derives the state of the
// run: finished, failed or, for the code of an interrupted program, killed.
const (
	historyFile  = "wandb-history.jsonl"
	summaryFile  = "wandb-summary.json"
	exitFinished = 0
	exitFailed   = 1
	exitKilled   = 255
)

// A streamed is the JSON body of a request to W&B's file_stream.
type streamed struct {
	Files    map[string]lines `json:"files,omitempty"`
	Complete *bool            `json:"complete,omitempty"`
	ExitCode *int             `json:"exitcode,omitempty"`
}

// lines are consecutive lines of a run's file, of which the first has the number Offset.
type lines struct {
	Offset  int      `json:"offset"`
	Content []string `json:"content"`
}

func (w wandb) begin(ctx context.Context, key domain.SecretValue, job description, r *run) error {
	config := map[string]any{}
	for name, value := range job.Parameters {
		config[name] = map[string]any{"value": value}
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		return fmt.Errorf("encode the parameters: %w", err)
	}
	id := job.RunID
	if id == "" {
		event := strings.ReplaceAll(job.CreateEvent, "-", "")
		id = job.Job.ID() + "-" + event[:min(len(event), 12)]
	}
	var entity *string // a nil entity becomes null, which stands for the default entity of the API key
	if job.Entity != "" {
		entity = &job.Entity
	}
	var reply struct {
		Data struct {
			UpsertBucket *struct {
				Bucket struct {
					Name             string `json:"name"`
					HistoryLineCount int    `json:"historyLineCount"`
					Project          struct {
						Name   string `json:"name"`
						Entity struct {
							Name string `json:"name"`
						} `json:"entity"`
					} `json:"project"`
				} `json:"bucket"`
				Inserted bool `json:"inserted"`
			} `json:"upsertBucket"`
		} `json:"data"`
		Errors []graphQLError `json:"errors"`
	}
	err = w.do(ctx, w.request(key, "/graphql", map[string]any{"query": upsertBucket, "operationName": "UpsertBucket",
		"variables": map[string]any{"name": id, "project": job.Project, "entity": entity,
			"displayName": job.DisplayName, "config": string(encoded), "jobType": "training"}}), &reply)
	switch done := reply.Data.UpsertBucket; {
	case err != nil:
		return err
	case len(reply.Errors) > 0:
		return rejection{"the tracker rejects the run (" + shown(reply.Errors[0].Message, key) + ")"}
	case done == nil || done.Bucket.Name == "" || done.Bucket.Project.Name == "" || done.Bucket.Project.Entity.Name == "":
		return rejection{"the response has no run: check that the address of the tracker is that of a W&B server"}
	default:
		b := done.Bucket
		if !r.Complete { // in a later call, HistoryLineCount includes the lines of this job
			r.Start, r.Earlier = job.Start, max(b.HistoryLineCount, 0)
		}
		r.ID, r.Project, r.Entity, r.Complete = b.Name, b.Project.Name, b.Project.Entity.Name, true
		r.URL = fmt.Sprintf("%s/%s/%s/runs/%s", w.pages(), url.PathEscape(r.Entity), url.PathEscape(r.Project),
			url.PathEscape(r.ID))
		return nil
	}
}

// pages returns the base URL of the tracker's web pages.
func (w wandb) pages() string {
	if w.base == "https://api.wandb.ai" {
		return "https://wandb.ai"
	}
	return strings.TrimSuffix(w.base, "/api")
}

func (w wandb) log(ctx context.Context, key domain.SecretValue, r run, sent int, rows []row, _ bool) error {
	history := lines{Offset: r.Earlier + sent}
	for _, row := range rows {
		line, err := line(row.Values, map[string]any{"_step": row.Step, "_timestamp": float64(row.Time.UnixMilli()) / 1000,
			"_runtime": row.Time.Sub(r.Start).Seconds()})
		if err != nil {
			return err
		}
		history.Content = append(history.Content, line)
	}
	return w.stream(ctx, key, r, streamed{Files: map[string]lines{historyFile: history}})
}

// line returns a line of a run's file: a JSON object with the metrics and further fields.
func line(metrics map[string]float64, further map[string]any) (string, error) {
	object := map[string]any{}
	for name, value := range metrics {
		object[name] = value
	}
	for name, value := range further {
		object[name] = value
	}
	text, err := json.Marshal(object)
	if err != nil {
		return "", fmt.Errorf("encode metrics: %w", err)
	}
	return string(text), nil
}

// keep sends an empty request. With such requests, the SDK shows that its program still runs.
func (w wandb) keep(ctx context.Context, key domain.SecretValue, r run) error {
	return w.stream(ctx, key, r, streamed{})
}

func (w wandb) end(ctx context.Context, key domain.SecretValue, r run, with ending) error {
	summary, err := line(with.Last, map[string]any{"job_state": with.State,
		"_runtime": with.Time.Sub(r.Start).Seconds()})
	if err != nil {
		return err
	}
	complete, code := true, exitFinished
	switch {
	case with.failed():
		code = exitFailed
	case with.killed():
		code = exitKilled
	}
	return w.stream(ctx, key, r, streamed{Files: map[string]lines{summaryFile: {Content: []string{summary}}},
		Complete: &complete, ExitCode: &code})
}

func (w wandb) stream(ctx context.Context, key domain.SecretValue, r run, body streamed) error {
	return w.do(ctx, w.request(key, fmt.Sprintf("/files/%s/%s/%s/file_stream", url.PathEscape(r.Entity),
		url.PathEscape(r.Project), url.PathEscape(r.ID)), body), nil)
}

func (w wandb) request(key domain.SecretValue, path string, body any) request {
	return request{method: http.MethodPost, path: path, body: body, key: key,
		authorization: "Basic " + basic(key.Reveal())}
}

package tracking

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"anneal/domain"
)

// mlflow is a tracker with the REST interface of MLflow, version 2.0. In MLflow, creating a run is
// not idempotent, so a run gets a tag with the job's identity, by which begin finds the run again.
// Some stores of MLflow keep duplicates, so when a metric may have been sent before, it is sent
// only if its step is newer than the newest one in MLflow.
type mlflow struct{ client }

const mlflowPath = "/api/2.0/mlflow/"

// Limits of MLflow's requests.
const (
	maxBatchMetrics = 1000
	maxBatchParams  = 100
	maxParamValue   = 500 // maximum characters of a parameter value that every release of MLflow accepts
	maxMLflowKey    = 250
)

// jobTag is the name of the tag with the ID of the event that created the job.
const jobTag = "anneal.job"

// Objects in MLflow's requests and responses.
type (
	mlflowPair struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	mlflowMetric struct {
		Key       string  `json:"key"`
		Value     float64 `json:"value"`
		Timestamp int64   `json:"timestamp"` // time of the value, in milliseconds since 1970
		Step      int     `json:"step"`
	}
	mlflowBatch struct {
		RunID   string         `json:"run_id"`
		Metrics []mlflowMetric `json:"metrics,omitempty"`
		Params  []mlflowPair   `json:"params,omitempty"`
		Tags    []mlflowPair   `json:"tags,omitempty"`
	}
	mlflowRun struct {
		Info struct {
			RunID string `json:"run_id"`
		} `json:"info"`
		Data struct {
			Metrics []mlflowMetric `json:"metrics"`
		} `json:"data"`
	}
	mlflowUpdate struct {
		RunID   string `json:"run_id"`
		Status  string `json:"status"`
		EndTime int64  `json:"end_time,omitempty"`
	}
)

func (m mlflow) begin(ctx context.Context, key domain.SecretValue, job description, r *run) error {
	if r.Complete { // the run exists, because the job was resumed
		return m.post(ctx, key, "runs/update", mlflowUpdate{RunID: r.ID, Status: "RUNNING"}, nil)
	}
	experiment, err := m.experiment(ctx, key, strings.TrimPrefix(job.Entity+"/"+job.Project, "/"))
	if err != nil {
		return err
	}
	if r.ID, err = m.find(ctx, key, experiment, job); err != nil {
		return err
	}
	if r.ID == "" {
		if r.ID, err = m.create(ctx, key, experiment, job); err != nil {
			return err
		}
	}
	r.Project, r.Entity, r.Start = job.Project, job.Entity, job.Start
	var params []mlflowPair
	for _, name := range slices.Sorted(maps.Keys(job.Parameters)) {
		value := []rune(strings.ToValidUTF8(fmt.Sprint(job.Parameters[name]), "\uFFFD"))
		params = append(params, mlflowPair{mlflowKey(name), string(value[:min(len(value), maxParamValue)])})
	}
	for batch := range slices.Chunk(params, maxBatchParams) {
		if err := m.post(ctx, key, "runs/log-batch", mlflowBatch{RunID: r.ID, Params: batch}, nil); err != nil {
			return err
		}
	}
	r.URL = fmt.Sprintf("%s/#/experiments/%s/runs/%s", m.base, url.PathEscape(experiment), url.PathEscape(r.ID))
	r.Complete = true
	return nil
}

// experiment returns the ID of the experiment with a name. It creates the experiment if there is
// none.
func (m mlflow) experiment(ctx context.Context, key domain.SecretValue, name string) (string, error) {
	var found struct {
		Experiment struct {
			ID    string `json:"experiment_id"`
			Stage string `json:"lifecycle_stage"`
		} `json:"experiment"`
	}
	for try := 0; ; try++ {
		q := m.request(key, http.MethodGet, "experiments/get-by-name?experiment_name="+url.QueryEscape(name), nil)
		q.expected = "RESOURCE_DOES_NOT_EXIST"
		err := m.do(ctx, q, &found)
		switch {
		case errors.Is(err, errExpected) && try == 0:
		case errors.Is(err, errExpected):
			return "", busyError{message: "MLflow reports that the experiment " + name + " exists, but does not return it"}
		case err != nil:
			return "", err
		case found.Experiment.Stage == "deleted":
			return "", rejection{"the MLflow experiment " + name + " is deleted: restore it, or name another project"}
		case found.Experiment.ID == "":
			return "", rejection{"the response has no experiment: check that the address of the tracker is that of " +
				"an MLflow server"}
		default:
			return found.Experiment.ID, nil
		}
		var created struct {
			ID string `json:"experiment_id"`
		}
		q = m.request(key, http.MethodPost, "experiments/create", map[string]string{"name": name})
		q.expected = "RESOURCE_ALREADY_EXISTS" // another job of the project may create it at the same time
		err = m.do(ctx, q, &created)
		if err != nil && !errors.Is(err, errExpected) {
			return "", err
		}
		if created.ID != "" {
			return created.ID, nil
		}
	}
}

// find returns the ID of the run that an earlier call of create created for the job; "" when there
// is none.
func (m mlflow) find(ctx context.Context, key domain.SecretValue, experiment string, job description) (string, error) {
	var found struct {
		Runs []mlflowRun `json:"runs"`
	}
	err := m.post(ctx, key, "runs/search", map[string]any{"experiment_ids": []string{experiment},
		"filter": fmt.Sprintf("tags.`%s` = '%s'", jobTag, job.CreateEvent), "max_results": 1}, &found)
	if err != nil || len(found.Runs) == 0 {
		return "", err
	}
	return found.Runs[0].Info.RunID, nil
}

func (m mlflow) create(ctx context.Context, key domain.SecretValue, experiment string, job description) (string,
	error) {
	name := job.RunID
	if name == "" {
		name = job.DisplayName
	}
	var created struct {
		Run mlflowRun `json:"run"`
	}
	err := m.post(ctx, key, "runs/create", map[string]any{"experiment_id": experiment, "run_name": name,
		"start_time": job.Start.UnixMilli(), "tags": []mlflowPair{{jobTag, job.CreateEvent},
			{"anneal.name", string(job.Job)}, {"mlflow.source.name", "anneal"}}}, &created)
	if err == nil && created.Run.Info.RunID == "" {
		err = rejection{"the response has no run: check that the address of the tracker is that of an MLflow server"}
	}
	return created.Run.Info.RunID, err
}

func (m mlflow) log(ctx context.Context, key domain.SecretValue, r run, _ int, rows []row, repeated bool) error {
	newest := map[string]int{}
	if repeated {
		var reply struct {
			Run mlflowRun `json:"run"`
		}
		q := m.request(key, http.MethodGet, "runs/get?run_id="+url.QueryEscape(r.ID), nil)
		if err := m.do(ctx, q, &reply); err != nil {
			return err
		}
		for _, metric := range reply.Run.Data.Metrics {
			newest[metric.Key] = metric.Step
		}
	}
	var batch []mlflowMetric
	for _, row := range rows {
		for _, name := range slices.Sorted(maps.Keys(row.Values)) {
			name, value := mlflowKey(name), row.Values[name]
			if last, sent := newest[name]; !sent || row.Step > last {
				batch = append(batch, mlflowMetric{name, value, row.Time.UnixMilli(), row.Step})
			}
		}
	}
	for part := range slices.Chunk(batch, maxBatchMetrics) {
		if err := m.post(ctx, key, "runs/log-batch", mlflowBatch{RunID: r.ID, Metrics: part}, nil); err != nil {
			return err
		}
	}
	return nil
}

// keep does nothing, because runs of MLflow have no heartbeat.
func (mlflow) keep(context.Context, domain.SecretValue, run) error { return nil }

func (m mlflow) end(ctx context.Context, key domain.SecretValue, r run, with ending) error {
	err := m.post(ctx, key, "runs/log-batch", mlflowBatch{RunID: r.ID,
		Tags: []mlflowPair{{"anneal.state", with.State}}}, nil)
	if err != nil {
		return err
	}
	status := "FINISHED"
	switch {
	case with.failed():
		status = "FAILED"
	case with.killed():
		status = "KILLED"
	}
	return m.post(ctx, key, "runs/update", mlflowUpdate{r.ID, status, with.Time.UnixMilli()}, nil)
}

// mlflowKey returns name as a name of a metric or parameter in MLflow: characters that MLflow does
// not allow are replaced by _, and it is cut to maxMLflowKey bytes.
func mlflowKey(name string) string {
	name = strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("_-. /", c) {
			return c
		}
		return '_'
	}, name)
	return name[:min(len(name), maxMLflowKey)]
}

func (m mlflow) post(ctx context.Context, key domain.SecretValue, path string, body, out any) error {
	return m.do(ctx, m.request(key, http.MethodPost, path, body), out)
}

// request returns a request with the API key: by HTTP basic authentication for a key USER:PASSWORD,
// and as a bearer token for a key without a colon.
func (m mlflow) request(key domain.SecretValue, method, path string, body any) request {
	authorization := "Bearer " + key.Reveal()
	if strings.Contains(key.Reveal(), ":") {
		authorization = "Basic " + base64.StdEncoding.EncodeToString([]byte(key.Reveal()))
	}
	return request{method: method, path: mlflowPath + path, body: body, key: key, authorization: authorization}
}

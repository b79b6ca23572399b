package trackertest

import (
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// MLflow is a test server with the part of MLflow's REST interface that records runs. Like MLflow's
// file store, it keeps each metric that it receives, even duplicates.
type MLflow struct {
	core
	experiments map[string]string     // ID of each experiment by its name
	runs        map[string]*MLflowRun // recorded runs by run ID
}

// An MLflowRun is a run that the test server has recorded.
type MLflowRun struct {
	Experiment string
	Name       string
	Status     string
	Start, End int64
	Tags       map[string]string
	Params     map[string]string
	Metrics    []MLflowMetric
}

// An MLflowMetric is one recorded value of a metric.
type MLflowMetric struct {
	Key       string   `json:"key"`
	Value     *float64 `json:"value"`
	Timestamp int64    `json:"timestamp"`
	Step      int      `json:"step"`
}

type pair struct {
	Key   string `json:"key"`
	Value string `json:"value"`
}

// NewMLflow returns a test server that accepts only the given bearer token.
func NewMLflow(token string) *MLflow {
	return &MLflow{core: core{key: token}, experiments: map[string]string{}, runs: map[string]*MLflowRun{}}
}

// Runs returns copies of all recorded runs.
func (s *MLflow) Runs() (all []MLflowRun) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(s.runs)) {
		run := *s.runs[id]
		run.Metrics, run.Tags = slices.Clone(run.Metrics), maps.Clone(run.Tags)
		all = append(all, run)
	}
	return all
}

// Experiments returns the names of all experiments.
func (s *MLflow) Experiments() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.experiments))
}

// ServeHTTP implements http.Handler.
func (s *MLflow) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(r *http.Request) (any, error) {
		if r.Header.Get("Authorization") != "Bearer "+s.key {
			return nil, violationError{http.StatusUnauthorized, "", "the bearer token is wrong: " +
				"" + r.Header.Get("Authorization")}
		}
		operation, ok := strings.CutPrefix(r.URL.Path, "/api/2.0/mlflow/")
		handler, known := map[string]func(*http.Request) (any, error){
			"GET experiments/get-by-name": s.getExperiment, "POST experiments/create": s.createExperiment,
			"POST runs/create": s.createRun, "POST runs/search": s.searchRuns, "GET runs/get": s.getRun,
			"POST runs/log-batch": s.logBatch, "POST runs/update": s.updateRun,
		}[r.Method+" "+operation]
		if !ok || !known {
			return nil, violation("unknown operation")
		}
		return handler(r)
	})
}

func notFound(message string) error {
	return violationError{http.StatusNotFound, "RESOURCE_DOES_NOT_EXIST", message}
}

func (s *MLflow) getExperiment(r *http.Request) (any, error) {
	name := r.URL.Query().Get("experiment_name")
	id, ok := s.experiments[name]
	if !ok {
		return nil, notFound("unknown experiment " + name)
	}
	return map[string]any{"experiment": map[string]any{"experiment_id": id, "name": name,
		"lifecycle_stage": "active"}}, nil
}

func (s *MLflow) createExperiment(r *http.Request) (any, error) {
	var body struct {
		Name string `json:"name"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if body.Name == "" {
		return nil, violation("the experiment has no name")
	}
	if _, exists := s.experiments[body.Name]; exists {
		return nil, violationError{http.StatusBadRequest, "RESOURCE_ALREADY_EXISTS", "the experiment exists already"}
	}
	s.experiments[body.Name] = strconv.Itoa(len(s.experiments) + 1)
	return map[string]string{"experiment_id": s.experiments[body.Name]}, nil
}

func (s *MLflow) createRun(r *http.Request) (any, error) {
	var body struct {
		Experiment string `json:"experiment_id"`
		Name       string `json:"run_name"`
		Start      int64  `json:"start_time"`
		Tags       []pair `json:"tags"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if !slices.Contains(slices.Collect(maps.Values(s.experiments)), body.Experiment) {
		return nil, notFound("unknown experiment " + body.Experiment)
	}
	id := "run" + strconv.Itoa(len(s.runs)+1)
	run := &MLflowRun{Experiment: body.Experiment, Name: body.Name, Status: "RUNNING", Start: body.Start,
		Tags: map[string]string{}, Params: map[string]string{}}
	for _, tag := range body.Tags {
		run.Tags[tag.Key] = tag.Value
	}
	s.runs[id] = run
	return map[string]any{"run": rendered(id, run)}, nil
}

func rendered(id string, run *MLflowRun) map[string]any {
	newest := map[string]MLflowMetric{}
	for _, metric := range run.Metrics {
		if last, ok := newest[metric.Key]; !ok || metric.Step >= last.Step {
			newest[metric.Key] = metric
		}
	}
	return map[string]any{"info": map[string]any{"run_id": id, "status": run.Status, "experiment_id": run.Experiment},
		"data": map[string]any{"metrics": slices.Collect(maps.Values(newest))}}
}

var tagFilter = regexp.MustCompile("^tags\\.`([^`]+)` = '([^']+)'$")

func (s *MLflow) searchRuns(r *http.Request) (any, error) {
	var body struct {
		Experiments []string `json:"experiment_ids"`
		Filter      string   `json:"filter"`
		Max         int      `json:"max_results"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	parts := tagFilter.FindStringSubmatch(body.Filter)
	if parts == nil || len(body.Experiments) == 0 || body.Max < 1 {
		return nil, violation("runs/search must have a filter tags.`KEY` = 'VALUE', experiment_ids and max_results; its "+
			"filter is %q", body.Filter)
	}
	found := []any{}
	for id, run := range s.runs {
		if run.Tags[parts[1]] == parts[2] && slices.Contains(body.Experiments, run.Experiment) {
			found = append(found, rendered(id, run))
		}
	}
	return map[string]any{"runs": found[:min(len(found), body.Max)]}, nil
}

func (s *MLflow) getRun(r *http.Request) (any, error) {
	id := r.URL.Query().Get("run_id")
	run, ok := s.runs[id]
	if !ok {
		return nil, notFound("unknown run_id " + id)
	}
	return map[string]any{"run": rendered(id, run)}, nil
}

var keyPattern = regexp.MustCompile(`^[A-Za-z0-9_\-. /]{1,250}$`)

func (s *MLflow) logBatch(r *http.Request) (any, error) {
	var body struct {
		RunID   string         `json:"run_id"`
		Metrics []MLflowMetric `json:"metrics"`
		Params  []pair         `json:"params"`
		Tags    []pair         `json:"tags"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	run, ok := s.runs[body.RunID]
	switch {
	case !ok:
		return nil, notFound("unknown run_id " + body.RunID)
	case len(body.Metrics) > 1000 || len(body.Params) > 100 || len(body.Tags) > 100 ||
		len(body.Metrics)+len(body.Params)+len(body.Tags) > 1000:
		return nil, violation("log-batch has %d metrics, %d params and %d tags: at most 1000, 100 and 100 are allowed, "+
			"1000 in total", len(body.Metrics), len(body.Params),
			len(body.Tags))
	case len(body.Metrics) > 0 && run.Status != "RUNNING":
		return nil, violation("metrics are only accepted by a RUNNING run, not by one that is %s", run.Status)
	}
	for _, metric := range body.Metrics {
		if !keyPattern.MatchString(metric.Key) || metric.Value == nil || metric.Timestamp <= 0 || metric.Step < 0 {
			return nil, violation("the metric %+v must have a valid key, a value, a timestamp and a step of at least 0", metric)
		}
	}
	for _, param := range body.Params {
		if !keyPattern.MatchString(param.Key) || len([]rune(param.Value)) > 500 {
			return nil, violation("the param %+v must have a valid key and a value of at most 500 characters", param)
		}
		if before, exists := run.Params[param.Key]; exists && before != param.Value {
			return nil, violation("the param %s was logged before with another value", param.Key)
		}
		run.Params[param.Key] = param.Value
	}
	for _, tag := range body.Tags {
		run.Tags[tag.Key] = tag.Value
	}
	run.Metrics = append(run.Metrics, body.Metrics...)
	return map[string]any{}, nil
}

func (s *MLflow) updateRun(r *http.Request) (any, error) {
	var body struct {
		RunID  string `json:"run_id"`
		Status string `json:"status"`
		End    int64  `json:"end_time"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	run, ok := s.runs[body.RunID]
	if !ok {
		return nil, notFound("unknown run_id " + body.RunID)
	}
	if !slices.Contains([]string{"RUNNING", "SCHEDULED", "FINISHED", "FAILED", "KILLED"}, body.Status) {
		return nil, violation("the status %q is unknown", body.Status)
	}
	run.Status, run.End = body.Status, body.End
	return map[string]any{"run_info": map[string]any{"run_id": body.RunID, "status": body.Status}}, nil
}

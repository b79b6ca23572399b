package trackertest

import (
	"encoding/json"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
)

// WandB is a test server with the interface that the SDK of Weights & Biases uses.
type WandB struct {
	core
	runs map[string]*WandBRun // recorded runs by path ENTITY/PROJECT/RUN
}

// A WandBRun is a run that the test server has recorded.
type WandBRun struct {
	DisplayName string
	Config      map[string]any
	History     []map[string]any
	Summary     map[string]any
	Complete    bool
	ExitCode    int
	Upserts     int
	Heartbeats  int
}

// NewWandB returns a test server that accepts only the given API key.
func NewWandB(key string) *WandB {
	return &WandB{core: core{key: key}, runs: map[string]*WandBRun{}}
}

// Run returns a copy of the run with a path; false when it does not exist.
func (s *WandB) Run(path string) (WandBRun, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	run, ok := s.runs[path]
	if !ok {
		return WandBRun{}, false
	}
	copied := *run
	copied.History = slices.Clone(run.History)
	return copied, true
}

// Runs returns the paths of all runs.
func (s *WandB) Runs() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.runs))
}

// ServeHTTP implements http.Handler.
func (s *WandB) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.serve(w, r, func(r *http.Request) (any, error) {
		if user, password, ok := r.BasicAuth(); !ok || user != "api" || password != s.key {
			return nil, violationError{http.StatusUnauthorized, "", "unknown API key " + password}
		}
		path, streams := strings.CutPrefix(r.URL.Path, "/files/")
		path, rest := strings.CutSuffix(path, "/file_stream")
		switch {
		case r.Method != http.MethodPost:
			return nil, violation("the method must be POST, not %s", r.Method)
		case r.URL.Path == "/graphql":
			return s.graphQL(r)
		case streams && rest && strings.Count(path, "/") == 2:
			return s.stream(r, path)
		}
		return nil, violation("unknown path")
	})
}

// Fields of the input and of the result of the mutation upsertBucket in W&B's GraphQL schema.
var (
	inputFields = []string{"id", "name", "groupName", "modelName", "entityName", "description", "displayName", "notes",
		"config", "commit", "host", "debug", "jobProgram", "jobRepo", "jobType", "state", "sweep", "tags", "summaryMetrics"}
	resultFields = []string{"bucket", "id", "name", "displayName", "description", "config", "sweepName", "project",
		"entity", "historyLineCount", "inserted"}
	declared = regexp.MustCompile(`\$(\w+): *(String|JSONString|Boolean|\[String!\])!?[,)\s]`)
	given    = regexp.MustCompile(`(\w+): *\$(\w+)[,}\s]`)
	document = regexp.MustCompile(
		`(?s)^mutation UpsertBucket\((.*?)\) *\{\s*upsertBucket\(input: \{(.*?)\}\) *\{(.*)\}\s*\}\s*$`)
)

// DefaultEntity is the entity of a run whose request names none.
const DefaultEntity = "team-of-the-key"

// graphQL executes the mutation upsertBucket, the only operation of the server.
func (s *WandB) graphQL(r *http.Request) (any, error) {
	var body struct {
		Query         string             `json:"query"`
		Variables     map[string]*string `json:"variables"`
		OperationName string             `json:"operationName"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	parts := document.FindStringSubmatch(strings.TrimSpace(body.Query))
	if parts == nil || body.OperationName != "UpsertBucket" {
		return nil, violation("not a mutation UpsertBucket: %s", body.Query)
	}
	variables, input := map[string]bool{}, map[string]string{}
	for _, one := range declared.FindAllStringSubmatch(parts[1]+")", -1) {
		variables[one[1]] = true
	}
	for name := range body.Variables {
		if !variables[name] {
			return nil, violation("the variable %s is not declared", name)
		}
	}
	for _, one := range given.FindAllStringSubmatch(parts[2]+"}", -1) {
		if !slices.Contains(inputFields, one[1]) || !variables[one[2]] {
			return nil, violation("the input has no field %s, or $%s is not declared", one[1], one[2])
		}
		if value := body.Variables[one[2]]; value != nil {
			input[one[1]] = *value
		} else if one[1] == "entityName" {
			input[one[1]] = DefaultEntity
		}
		delete(variables, one[2])
	}
	if len(variables) > 0 {
		return nil, violation("the query does not use the variables %v", variables)
	}
	for _, field := range regexp.MustCompile(`\w+`).FindAllString(parts[3], -1) {
		if !slices.Contains(resultFields, field) {
			return nil, violation("the result has no field %s", field)
		}
	}
	return s.upsert(input)
}

func (s *WandB) upsert(input map[string]string) (any, error) {
	for _, name := range []string{"name", "modelName", "entityName"} {
		if input[name] == "" || len(input[name]) > 128 || strings.ContainsAny(input[name], `/\#?%:`) {
			return nil, violation("the input field %s must not be %q", name, input[name])
		}
	}
	var config map[string]struct {
		Value any `json:"value"`
	}
	if err := strict([]byte(input["config"]), &config); err != nil {
		return nil, err
	}
	path := input["entityName"] + "/" + input["modelName"] + "/" + input["name"]
	run, exists := s.runs[path]
	if !exists {
		run = &WandBRun{}
		s.runs[path] = run
	}
	run.DisplayName, run.Config, run.Complete, run.ExitCode = input["displayName"], map[string]any{}, false, 0
	for name, value := range config {
		run.Config[name] = value.Value
	}
	run.Upserts++
	return map[string]any{"data": map[string]any{"upsertBucket": map[string]any{"inserted": !exists,
		"bucket": map[string]any{"id": "storage-" + input["name"], "name": input["name"],
			"displayName": input["displayName"], "historyLineCount": len(run.History), "project": map[string]any{
				"name": input["modelName"], "entity": map[string]any{"name": input["entityName"]}}}}}}, nil
}

// stream handles a request to file_stream, which writes lines of a run's files.
func (s *WandB) stream(r *http.Request, path string) (any, error) {
	run, ok := s.runs[path]
	if !ok {
		return nil, violationError{http.StatusNotFound, "INVALID_PARAMETER_VALUE", "unknown run " + path}
	}
	var body struct {
		Files map[string]struct {
			Offset  *int     `json:"offset"`
			Content []string `json:"content"`
		} `json:"files"`
		Uploaded   []string `json:"uploaded"`
		Preempting *bool    `json:"preempting"`
		Complete   *bool    `json:"complete"`
		ExitCode   *int     `json:"exitcode"`
	}
	if err := decode(r, &body); err != nil {
		return nil, err
	}
	if run.Complete && body.Complete == nil {
		return nil, violation("the run is complete")
	}
	if (body.Complete == nil) != (body.ExitCode == nil) {
		return nil, violation("complete and exitcode must be sent together")
	}
	for name, part := range body.Files {
		if part.Offset == nil || len(part.Content) == 0 {
			return nil, violation("the file %s must have an offset and lines", name)
		}
		switch name {
		case "wandb-history.jsonl":
			if err := run.write(*part.Offset, part.Content); err != nil {
				return nil, err
			}
		case "wandb-summary.json":
			if len(part.Content) != 1 || json.Unmarshal([]byte(part.Content[0]), &run.Summary) != nil {
				return nil, violation("the summary must be one JSON object")
			}
		default:
			return nil, violation("unknown file %s", name)
		}
	}
	if len(body.Files) == 0 {
		run.Heartbeats++
	}
	if body.Complete != nil {
		run.Complete, run.ExitCode = *body.Complete, *body.ExitCode
	}
	return map[string]any{"exitcode": nil, "limits": map[string]any{}}, nil
}

// write writes lines of the history from the line number offset on. The history must have no gaps.
// A line may be written again only with the same content.
func (run *WandBRun) write(offset int, content []string) error {
	if offset < 0 || offset > len(run.History) {
		return violation("offset %d leaves a gap after %d lines", offset, len(run.History))
	}
	for i, text := range content {
		var line map[string]any
		if json.Unmarshal([]byte(text), &line) != nil {
			return violation("line %d is not an object", offset+i)
		}
		step, ok := line["_step"].(float64)
		if _, stamped := line["_timestamp"].(float64); !ok || !stamped {
			return violation("line %d has no _step or no _timestamp", offset+i)
		}
		at := offset + i
		if at > 0 && step <= run.History[at-1]["_step"].(float64) {
			return violation("line %d has the step %v, which must be greater than %v", at, step, run.History[at-1]["_step"])
		}
		if at < len(run.History) {
			before, _ := json.Marshal(run.History[at])
			again, _ := json.Marshal(line)
			if string(before) != string(again) {
				return violation("line %d was written before as %s, and is now %s", at, before, again)
			}
			continue
		}
		run.History = append(run.History, line)
	}
	return nil
}

package api

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/internal/testutil"
	"anneal/projections"
	"anneal/projections/live"
)

var update = flag.Bool("update", false, "write the responses of the transcripts to their files")

// A transcript is a file of requests and their responses, in order,
// through the real handler:
//
//	# a comment
//	! serve accounts/acme/deployments/d1     an action of another part of the platform
//	> POST /v1/accounts/acme/datasets admin  a request with the key of an alias
//	> {"dataset": {}}                        its body
//	< 200                                    the response
//
// "upload=NAME" at the end of a request sends the body as a file in a form;
// "with=NAME=VALUE" adds another field to the form.
// -update replaces the responses in the file.
func TestTranscripts(t *testing.T) {
	files := testutil.Glob(t, "testdata/*.txt")
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			want := testutil.ReadFile(t, file)
			got := play(newHarness(t, request.Limits{}), string(want))
			if *update {
				require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
				return
			}
			compare(t, strings.Split(string(want), "\n"), strings.Split(got, "\n"))
		})
	}
}

// compare fails the test with the first line that differs, and the request of that line.
func compare(t *testing.T, want, got []string) {
	request := ""
	for i := range max(len(want), len(got)) {
		if i < len(want) && i < len(got) && want[i] == got[i] {
			if strings.HasPrefix(want[i], ">") {
				request = want[i]
			}
			continue
		}
		require.Equal(t, strings.Join(want[i:min(i+10, len(want))], "\n"), strings.Join(got[i:min(i+10, len(got))], "\n"),
			"line %d, the response to %s", i+1, request)
		t.Fatalf("line %d differs", i+1)
	}
}

func play(s *harness, script string) string {
	var out strings.Builder
	var request []string
	number := 0
	respond := func() {
		if len(request) > 0 {
			number++
			out.WriteString(perform(s, request, number))
			request = nil
		}
	}
	for _, line := range strings.Split(strings.TrimRight(script, "\n"), "\n") {
		if strings.HasPrefix(line, "<") {
			continue // the current response replaces the recorded one
		}
		if !strings.HasPrefix(line, ">") {
			respond()
		}
		out.WriteString(line + "\n")
		switch {
		case strings.HasPrefix(line, "> "):
			request = append(request, line[2:])
		case line == ">":
			request = append(request, "")
		case strings.HasPrefix(line, "! "):
			executeAction(s, strings.Fields(line[2:]))
		}
	}
	respond()
	return out.String()
}

// perform sends the request in lines and returns the response in the format of transcripts.
func perform(s *harness, lines []string, number int) string {
	r := parseRequest(strings.Join(lines, "\n")).on(s)
	r.Header.Set("X-Request-Id", fmt.Sprintf("request-%d", number))
	return transcribed(s, s.send(r))
}

// A scripted is a parsed request of a transcript or a test case. The first line of a request is its
// head, such as "POST /v1/accounts admin upload=NAME"; the following lines are the body.
type scripted struct {
	method, path, alias, file, body string
	fields                          []string // fields of the form besides the file
}

func parseRequest(text string) scripted {
	head, body, _ := strings.Cut(text, "\n")
	words := strings.Fields(head)
	out := scripted{method: words[0], path: words[1], body: body}
	for _, word := range words[2:] {
		if name, ok := strings.CutPrefix(word, "upload="); ok {
			out.file = name
		} else if field, ok := strings.CutPrefix(word, "with="); ok {
			out.fields = append(out.fields, field)
		} else if word != "-" {
			out.alias = word
		}
	}
	return out
}

func (one scripted) on(s *harness) *http.Request {
	if one.file != "" {
		return s.form(one.path, one.alias, "file", one.file, strings.NewReader(one.body+"\n"), one.fields...)
	}
	return s.request(one.method, one.path, one.alias, strings.NewReader(one.body))
}

// transcribed returns a response in the format of transcripts, with the parts that differ from run
// to run replaced.
func transcribed(s *harness, a response) string {
	var out strings.Builder
	fmt.Fprintf(&out, "< %d\n", a.status)
	for _, name := range []string{"Allow", "Retry-After", "Www-Authenticate", "Anneal-Warning", "Anneal-Prompt-Tokens",
		"X-RateLimit-Limit-Requests", "X-RateLimit-Remaining-Requests", "X-RateLimit-Reset-Requests"} {
		for _, value := range a.header[http.CanonicalHeaderKey(name)] {
			fmt.Fprintf(&out, "< %s: %s\n", name, value)
		}
	}
	var pretty bytes.Buffer
	text := string(a.body)
	if json.Indent(&pretty, a.body, "", "  ") == nil {
		text = pretty.String()
	}
	for _, line := range strings.Split(strings.TrimRight(scrub(s, text), "\n"), "\n") {
		out.WriteString(strings.TrimRight("< "+line, " ") + "\n")
	}
	return out.String()
}

var scrubs = []struct {
	pattern *regexp.Regexp
	with    string
}{
	{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UUID"},
	{regexp.MustCompile(`"(file|ftjob|batch)-[0-9a-f]{32}"`), `"$1-HEX"`},
	{regexp.MustCompile(`(ank_[a-z-]+_[a-z0-9A-Z-]+)_[0-9a-f]{72}`), "${1}_SECRET"},
	{regexp.MustCompile(`wh(sec|pk)_[0-9a-zA-Z+/]{43}=`), "wh${1}_KEY"},
	{regexp.MustCompile(`("prefix": "ank_[a-z-]+_[a-zA-Z0-9-]+_)[0-9a-f]{4}`), "${1}ABCD"},
	{regexp.MustCompile(`signature=[A-Za-z0-9_-]+`), "signature=SIGNATURE"},
	{regexp.MustCompile(`until=[0-9]+`), "until=UNTIL"},
	{regexp.MustCompile(`/([0-9]+)-[0-9a-f]{8}/`), "/$1-RANDOM/"},
	{regexp.MustCompile(`("(?:nextPageToken)": ")[^"]+`), "${1}TOKEN"},
	{regexp.MustCompile(`("server-[a-z-]+": )[0-9.]+`), "${1}SECONDS"},
	{regexp.MustCompile(`"sha256": "[0-9a-f]{64}"`), `"sha256": "HASH"`},
}

func scrub(s *harness, text string) string {
	text = strings.ReplaceAll(text, s.url, "http://HOST")
	for _, one := range scrubs {
		text = one.pattern.ReplaceAllString(text, one.with)
	}
	return text
}

// executeAction executes an action of another part of the platform.
func executeAction(s *harness, words []string) {
	name := domain.Name(words[1])
	switch words[0] {
	case "serve":
		s.serve(name)
	case "deleted":
		s.deployment(name, domain.FinishDeletion{Keep: domain.RecentUse})
	case "checkpoint":
		s.do(domain.IntendJob(name, domain.StartValidation{}))
		s.do(domain.IntendJob(name, domain.QueueJob{}))
		s.do(domain.IntendJob(name, domain.StartJob{Attempt: 1, Nodes: []domain.Name{"accounts/system/nodes/n1"}}))
		for _, step := range []int{100, 200} {
			s.do(domain.IntendJob(name,
				domain.RecordCheckpoint{JobCheckpoint: domain.JobCheckpoint{Step: step, Attempt: 1,
					Files: storedCheckpoint(s, name, step), Metrics: map[string]float64{"train/loss": 1.5}}}))
		}
		s.putFile(blobs.MetricsFile(name, s.world.Lookup(name).CreateEvent), "{}\n")
		if name.Collection() == domain.ReinforcementJobs.Collection {
			s.storeRollouts(name, 1, rollout(1, 1, 1, 0.25), rollout(1, 1, 2, 1))
		}
	case "log":
		s.putFile(blobs.TrainerLog(name, s.world.Lookup(name).CreateEvent, 1), "step 1 of 2\n")
	case "stepped": // completes the step of a trainer job
		row, ok := projections.TableOf(s.world.View(), domain.TrainerJobs).Get(name)
		require.True(s, ok)
		if row.State.State == domain.JobCreatingState {
			s.do(domain.IntendJob(name, domain.StartValidation{}))
			s.do(domain.IntendJob(name, domain.QueueJob{}))
		}
		attempt := row.State.Attempt + 1
		s.do(domain.IntendJob(name, domain.StartJob{Attempt: attempt, Nodes: []domain.Name{"accounts/system/nodes/n1"}}))
		output := domain.NewName(name.Account(), domain.Models.Collection, row.State.Step.OutputModel)
		s.do(register(output, false))
		s.do(domain.Intend(domain.TrainerJobs, name, domain.FinishTrainStep{Attempt: attempt, Output: output}))
	case "cancelled":
		s.do(domain.IntendJob(name, domain.CancelJob{}))
		s.do(domain.IntendJob(name, domain.ConfirmCancel{Attempt: 1}))
	case "complete":
		s.do(domain.IntendJob(name,
			domain.CompleteJob{Attempt: 1, Output: domain.NewName(name.Account(), "models", name.ID())}))
		s.do(register(domain.NewName(name.Account(), "models", name.ID()), false))
	case "addon", "tuned": // creates an addon of the public model
		model := domain.RegisterModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
			BaseModel: "accounts/default/models/anneal-base"},
			ModelMetadata: domain.ModelMetadata{ModelType: "llama", ParameterCount: 840_000, ContextLength: 512},
			Files:         domain.Files{Prefix: "models/" + name.ID() + "/"}}
		if words[0] == "tuned" {
			model.Kind = domain.BaseModel
		}
		s.do(domain.Intend(domain.Models, name, domain.Command[domain.Model](model)))
	case "batch": // creates a batch, and the file of its requests
		s.do(createsBatchFile(domain.Name(words[2])))
		s.do(createsBatch(name, domain.Name(words[2])))
	case "speech": // creates a speech model
		s.do(registerSpeech(name))
	case "filled": // stores the rows of a derived dataset
		s.do(domain.Intend(domain.Datasets, name, domain.FillDataset{
			Files: domain.Files{Prefix: "datasets/" + name.ID() + "/", Sizes: map[string]int64{"rows.jsonl": 42}},
			DatasetStats: domain.DatasetStats{Format: domain.FormatCompletion, Shape: domain.ShapeCompletion, ExampleCount: 3,
				EstimatedTokenCount: 11, AverageTurnCount: 1}}))
	case "prepared": // creates the datasets of a job
		in := domain.JobInputs{Train: domain.NewName(name.Account(), "datasets", name.ID()+"-train"),
			Evaluation: domain.NewName(name.Account(), "datasets", name.ID()+"-eval")}
		s.do(domain.IntendJob(name, domain.StartValidation{}))
		step := []domain.Intent{domain.IntendJob(name, domain.PrepareInput{Inputs: in})}
		for made, rest := range map[domain.Name]bool{in.Train: true, in.Evaluation: false} {
			split := domain.Split{Held: 1, Of: 4, Seed: 7, Rest: rest}
			step = append(step, domain.Intend(domain.Datasets, made, domain.CreateDataset{
				DatasetSpec: domain.DatasetSpec{SourceJobName: string(name),
					Splitted: split.Origin("accounts/acme/datasets/source")},
				From: &domain.Derivation{Source: "accounts/acme/datasets/source", Split: &split}}))
		}
		s.do(step...)
	case "progress": // reports progress of a dataset that is being derived
		s.world.Live().Report(name, live.Progress{Step: 20_000, Steps: 60_000})
	case "unfilled":
		s.do(domain.Intend(domain.Datasets, name, domain.FailFill{Status: domain.Status{Code: "INVALID_ARGUMENT",
			Message: "2 of the 4 rows match, and at least 3 are needed"}}))
	case "loaded": // loads an addon on every ready replica
		s.do(domain.Intend(domain.DeployedModels, name, domain.MarkModelDeployed{}))
	case "unloaded":
		s.do(domain.Intend(domain.DeployedModels, name, domain.FinishUndeployment{}))
	case "put": // uploads an evaluator's code, like a client with a signed URL
		s.putFile(arrivalsOf(evaluatorRow(s, name))+"main.py", "def evaluate(): ...\n")
	case "built":
		s.do(domain.Intend(domain.Evaluators, name, domain.AcceptBuild{Revision: 2, BuildLog: "evaluators/log.txt"}))
	case "node":
		s.do(domain.Intend(domain.Nodes, name, domain.RegisterNode{NodeSpec: domain.NodeSpec{Capacity: domain.Resources{
			CPUMilli: 2000, MemoryMiB: 4096}, Engines: []string{"train", "complete"}, Version: "1"}}))
	default:
		s.Fatalf("a transcript has no event %q", words[0])
	}
}

// madeAt returns the time at which the job was created.
func madeAt(s *harness, name domain.Name) time.Time {
	s.Helper()
	row, ok := s.world.View().Job(name)
	require.True(s, ok, "there is no %s", name)
	return row.CreateTime
}

// storedCheckpoint stores the files of a checkpoint with an adapter, and returns them.
func storedCheckpoint(s *harness, job domain.Name, step int) domain.Files {
	header := `{"base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight":{"dtype":"F32","shape":[8,4],` +
		`"data_offsets":[0,128]},"base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight":{"dtype":"F32",` +
		`"shape":[4,8],"data_offsets":[128,256]}}`
	weights := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	weights = append(append(weights, header...), make([]byte, 256)...)
	files := domain.Files{Prefix: blobs.CheckpointPrefix(job, s.world.Lookup(job).CreateEvent, 1, step),
		Sizes: map[string]int64{}}
	for name, content := range map[string]string{"state.json": "{}",
		"model/adapter_config.json":       `{"peft_type": "LORA", "r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}`,
		"model/adapter_model.safetensors": string(weights)} {
		size := s.putFile(files.Prefix+name, content)
		files.Sizes[name] = size
	}
	return files
}

package api

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/engines"
	sealed "anneal/eventlog/secrets"
)

// Limits of a preview.
const (
	maxSamples  = 100
	previewTime = time.Minute // for all samples together
	mostPreview = 2           // of an account at one time
)

func previewOperation(s *Server) request.Operation {
	return request.Operation{ID: "previewEvaluator", Method: "POST", Path: request.CollectionPath + "evaluators:previewEvaluator", Summary: "Try an evaluator on a few rows", Permission: request.Write,
		Description: "Nothing is kept. The code is that of the evaluator's criteria; without any, the newest built code of the evaluator that has its name. " +
			"What the code printed comes back too, a text for each sample. A preview takes a minute at most: samples that it does not come to say so.",
		Body: reflect.TypeFor[previewQuestion](), Required: []string{"evaluator", "sampleData"}, Response: reflect.TypeFor[previewAnswer](), Handle: s.handle(previewEvaluator)}
}

// A previewQuestion is code and rows to try it on.
type previewQuestion struct {
	Evaluator  *PreviewedEvaluator `json:"evaluator"`
	SampleData []any               `json:"sampleData"`
	MaxSamples int                 `json:"maxSamples,omitempty"`
}

// PreviewedEvaluator is an evaluator that need not be there yet.
type PreviewedEvaluator struct {
	Name string `json:"name,omitempty"`
	domain.EvaluatorSpec
}

// A previewAnswer is what became of each row.
type previewAnswer struct {
	Results        []PreviewResult `json:"results"`
	TotalSamples   int             `json:"totalSamples"`
	TotalRuntimeMs int             `json:"totalRuntimeMs"`
	Stdout         []string        `json:"stdout"`
	Stderr         []string        `json:"stderr"`
}

// PreviewResult is what became of one row.
type PreviewResult struct {
	Success        bool               `json:"success"`
	Score          float64            `json:"score"`
	PerMetricEvals map[string]float64 `json:"perMetricEvals"`
	Reason         string             `json:"reason"`
}

func previewEvaluator(c *call) (any, error) {
	var asked previewQuestion
	p := c.Params()
	if err := readVerbWith(c, &p.Violations, &asked); err != nil {
		return nil, err
	}
	rows := asked.rows(&p.Violations)
	asked.Evaluator.check(&p.Violations, c.Time)
	if err := p.Err(); err != nil {
		return nil, err
	}
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	leave, ok := c.server.busy.Enter("previews "+c.Account, mostPreview)
	if !ok {
		return nil, domain.Errorf(domain.ResourceExhausted, "%d previews of accounts/%s are under way: wait for one to end", mostPreview, c.Account)
	}
	defer leave()
	dir, err := os.MkdirTemp("", "anneal-preview-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	code, err := c.previewed(*asked.Evaluator, dir)
	if err != nil {
		return nil, err
	}
	if c.server.Scorer == nil {
		return nil, domain.Errorf(domain.Unavailable, "this server runs no evaluators: create the evaluator, and look at its build log")
	}
	began := c.Now()
	ctx, cancel := context.WithTimeout(c.Ctx, previewTime)
	defer cancel()
	answer, err := tryOn(ctx, c.server.Scorer, code, rows)
	if c.Ctx.Err() != nil {
		return nil, c.Ctx.Err()
	}
	var fault *domain.Error
	if errors.As(err, &fault) {
		shown := *fault
		shown.Message = sealed.Redact(shown.Message, code.Env)
		return nil, &shown
	}
	answer.TotalRuntimeMs = int(c.Now().Sub(began) / time.Millisecond)
	return answer, err
}

// rows are the samples that are tried: objects, or texts that hold one.
func (q previewQuestion) rows(v *domain.Violations) []map[string]any {
	v.Require(q.Evaluator != nil, "evaluator", "is required")
	v.Require(q.MaxSamples >= 0 && q.MaxSamples <= maxSamples, "maxSamples", "must be from 1 to %d; 0 tries all", maxSamples)
	v.Require(len(q.SampleData) > 0 && len(q.SampleData) <= maxSamples, "sampleData", "must have 1 to %d entries", maxSamples)
	samples := q.SampleData
	if q.MaxSamples > 0 {
		samples = samples[:min(len(samples), q.MaxSamples)]
	}
	var rows []map[string]any
	for i, sample := range samples {
		if text, ok := sample.(string); ok {
			var held any
			_ = json.Unmarshal([]byte(text), &held) // what it does not hold is no object
			sample = held
		}
		row, ok := sample.(map[string]any)
		v.Require(ok, fmt.Sprintf("sampleData[%d]", i), "must be a JSON object, or a text that holds one")
		if ok {
			v.Require(row["messages"] != nil, fmt.Sprintf("sampleData[%d].messages", i), "is required: the last of them is the answer that is scored")
		}
		rows = append(rows, row)
	}
	return rows
}

// check names what is wrong with an evaluator that brings its code.
func (e *PreviewedEvaluator) check(v *domain.Violations, now time.Time) {
	if e == nil {
		return // and told already
	}
	var wrong domain.Violations
	if inline, _ := e.Inline(&wrong); len(inline) == 0 {
		return
	}
	_, err := domain.CreateEvaluator{EvaluatorSpec: e.EvaluatorSpec}.Decide(domain.Evaluator{}, now)
	if err == nil {
		err = wrong.Err()
	}
	if fault, ok := prefixedBy("evaluator.", err).(*domain.Error); ok {
		*v = append(*v, fault.Violations...)
	}
}

// previewed writes the code into dir.
func (c *call) previewed(e PreviewedEvaluator, dir string) (code engines.EvaluatorCode, err error) {
	var v domain.Violations
	inline, entry := e.Inline(&v)
	names := e.Secrets
	if len(inline) > 0 {
		for _, name := range slices.Sorted(maps.Keys(inline)) {
			if err := writeCode(dir, name, strings.NewReader(inline[name])); err != nil {
				return code, err
			}
		}
	} else {
		row, ok := c.View().Evaluators.Get(domain.Name(e.Name))
		v.Require(ok && row.Name.Account() == c.Account, "evaluator", "must have criteria with code, or the name of an evaluator of accounts/%s", c.Account)
		if err := v.Err(); err != nil {
			return code, err
		}
		build, ok := row.State.BuildOf(row.State.Active)
		if !ok {
			return code, domain.Errorf(domain.FailedPrecondition, "%s was never built: it is %s (%s)", row.Name, row.State.State, row.State.Status.Message)
		}
		if err := c.fetchCode(build.Files, dir); err != nil {
			return code, err
		}
		entry, names = build.Entry, row.State.Secrets
	}
	code = engines.EvaluatorCode{Dir: dir, EntryFile: entry.File, EntryFunc: entry.Func}
	if len(names) > 0 {
		if err := c.Principal.Require(request.ManageSecrets); err != nil {
			return code, err
		}
		code.Env, err = sealed.Resolver{Rows: c.World, Open: c.server.Sealer.Open}.Values(c.Ctx, c.Account, "evaluator.secrets", names)
	}
	return code, err
}

func (c *call) fetchCode(files domain.Files, dir string) error {
	for _, name := range wire.SortedKeys(files.Sizes) {
		content, err := c.server.Blobs.Get(c.Ctx, files.Folder+name)
		if err != nil {
			return err
		}
		if err := errors.Join(writeCode(dir, name, content), content.Close()); err != nil {
			return err
		}
	}
	return nil
}

func writeCode(dir, name string, content io.Reader) error {
	path := filepath.Join(dir, filepath.FromSlash(name))
	if !domain.CheckCodePath(name) {
		return domain.Errorf(domain.InvalidArgument, "the name %s of a file %s", wire.Quote(name), domain.CodePathRule)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return err
	}
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

// tryOn scores the rows one by one, for as long as ctx lasts.
func tryOn(ctx context.Context, scorer engines.Scorer, code engines.EvaluatorCode, rows []map[string]any) (answer previewAnswer, err error) {
	evaluation, err := scorer.Open(ctx, code)
	if err != nil {
		return answer, err
	}
	defer func() { err = cmp.Or(err, evaluation.Close()) }()
	answer = previewAnswer{TotalSamples: len(rows), Stdout: []string{}, Stderr: []string{}}
	for _, row := range rows {
		scores, err := evaluation.Score(ctx, []map[string]any{row})
		if ctx.Err() != nil {
			scores = []engines.Score{{Reason: fmt.Sprintf("not scored: a preview takes %s at most", previewTime)}}
		} else if err != nil {
			return answer, err
		}
		one := scores[0]
		result := PreviewResult{Success: one.Valid, Score: one.Value, PerMetricEvals: one.Metrics, Reason: sealed.Redact(one.Reason, code.Env)}
		if result.PerMetricEvals == nil {
			result.PerMetricEvals = map[string]float64{}
		}
		answer.Results = append(answer.Results, result)
		answer.Stdout, answer.Stderr = append(answer.Stdout, sealed.Redact(one.Stdout, code.Env)), append(answer.Stderr, sealed.Redact(one.Stderr, code.Env))
	}
	return answer, nil
}

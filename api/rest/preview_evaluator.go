package rest

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
	"anneal/projections"
)

// Limits of a preview of an evaluator.
const (
	maxSamples = 100
	// defaultSamples is the number of rows of the defaultDataset that a preview scores if the
	// request has no maxSamples.
	defaultSamples = 10
	previewTime    = time.Minute // maximum duration of a preview
	MaxPreviews    = 2           // maximum number of concurrent previews of an account
)

func previewOperation(s *Service) request.Operation {
	return request.Operation{ID: "previewEvaluator", Method: "POST", Path: request.CollectionPath +
		"evaluators:previewEvaluator", Summary: "Run an evaluator on some rows", Permission: request.Write,
		Description: "Scores rows without storing anything. The preview runs the code in criteria or, without criteria, " +
			"the active revision of the named evaluator. Without sampleData it scores the first rows of the defaultDataset " +
			"in the body or, without one, of the named evaluator. The response contains the output of the code, one " +
			"string for each row. A preview takes at most one minute. For a row that was not scored in time, the reason of " +
			"the result states " +
			"the limit.",
		Body: reflect.TypeFor[previewQuestion](), Required: []string{"evaluator"},
		Response: reflect.TypeFor[previewAnswer](), Handle: s.handle(previewEvaluator)}
}

// A previewQuestion is the request body of previewEvaluator.
type previewQuestion struct {
	Evaluator  *PreviewedEvaluator `json:"evaluator"`
	SampleData []any               `json:"sampleData,omitempty"`
	MaxSamples int                 `json:"maxSamples,omitempty"`
}

// PreviewedEvaluator is the evaluator to preview: the name of a stored evaluator, or its code.
type PreviewedEvaluator struct {
	Name string `json:"name,omitempty"`
	domain.EvaluatorSpec
}

// A previewAnswer is the response of previewEvaluator.
type previewAnswer struct {
	Results        []PreviewResult `json:"results"`
	TotalSamples   int             `json:"totalSamples"`
	TotalRuntimeMs int             `json:"totalRuntimeMs"`
	Stdout         []string        `json:"stdout"`
	Stderr         []string        `json:"stderr"`
}

// PreviewResult is the result of one row of a preview.
type PreviewResult struct {
	Success        bool               `json:"success"`
	Score          float64            `json:"score"`
	PerMetricEvals map[string]float64 `json:"perMetricEvals"`
	Reason         string             `json:"reason"`
}

func previewEvaluator(c *call) (any, error) {
	var body previewQuestion
	p := c.Params()
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	source, hasDefault := body.defaultDataset(c, &p.Violations)
	rows := body.rows(&p.Violations, hasDefault)
	body.Evaluator.checkCode(&p.Violations, c.Time)
	if err := p.Err(); err != nil {
		return nil, err
	}
	warnZeros(c.Call, p, "", nil, nil)
	if err := c.RequireActive(c.Account); err != nil {
		return nil, err
	}
	release, ok := c.Busy.Enter("previews "+c.Account, MaxPreviews)
	if !ok {
		return nil, domain.Errorf(domain.ResourceExhausted, "accounts/%[2]s has %[1]d previews in progress, which is the "+
			"limit: wait until one ends",
			MaxPreviews, c.Account)
	}
	defer release() // MaxPreviews also bounds the reads of files: see TestFilesAreReadAfterAdmission
	if source != nil {
		var err error
		if rows, err = firstRows(c, source, cmp.Or(body.MaxSamples, defaultSamples)); err != nil {
			return nil, err
		}
	}
	dir, err := os.MkdirTemp("", "anneal-preview-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	code, err := prepareCode(c, *body.Evaluator, dir)
	if err != nil {
		return nil, err
	}
	if c.Scorer == nil {
		return nil, domain.Errorf(domain.Unavailable,
			"this server cannot run previews: create the evaluator, and read its build log")
	}
	started := c.Now()
	ctx, cancel := context.WithTimeout(c.Ctx, previewTime)
	defer cancel()
	answer, err := scoreRows(ctx, c.Scorer, code, rows)
	if c.Ctx.Err() != nil {
		return nil, c.Ctx.Err()
	}
	var domainErr *domain.Error
	if errors.As(err, &domainErr) {
		redacted := *domainErr
		redacted.Message = sealed.Redact(redacted.Message, code.Env)
		return nil, &redacted
	}
	answer.TotalRuntimeMs = int(c.Now().Sub(started) / time.Millisecond)
	return answer, err
}

// defaultDataset returns the row of the dataset whose rows a preview without sampleData scores: the
// defaultDataset in the body or, without one, of the named evaluator. named is false if the preview
// has sampleData, or if there is no defaultDataset. defaultDataset adds a violation if the dataset
// does not exist, or its rows have no responses.
func (q previewQuestion) defaultDataset(c *call, v *domain.Violations) (source *projections.Row[domain.Dataset],
	named bool) {
	if len(q.SampleData) > 0 || q.Evaluator == nil {
		return nil, false
	}
	const field = "evaluator.defaultDataset"
	ref := q.Evaluator.DefaultDataset
	if row, ok := c.View().Evaluators.Get(domain.Name(q.Evaluator.Name)); ok && row.Name.Account() == c.Account {
		ref = cmp.Or(ref, row.State.DefaultDataset)
	}
	d := c.requireDataset(v, field, ref)
	if d == nil {
		return nil, ref != ""
	}
	v.Require(d.State == domain.DatasetReady, field, "%s is %s, not READY: upload its rows, or wait until it is "+
		"READY", ref, d.State)
	v.Require(d.State != domain.DatasetReady || d.Shape == domain.ShapeChat, field,
		"%s has rows without a response to score (%s): use a dataset of chat rows, or give sampleData", ref, d.Shape)
	source, _ = c.View().Datasets.Get(domain.Name(ref))
	return source, true
}

// firstRows returns the first n rows of a dataset of chat rows.
func firstRows(c *call, source *projections.Row[domain.Dataset], n int) (rows []map[string]any, err error) {
	lines, _, err := rowsFrom(c, source, previewCursor{}, n)
	if err != nil {
		return nil, err
	}
	for _, line := range lines {
		var row map[string]any
		if err := json.Unmarshal(line, &row); err != nil {
			return nil, err // not an error of the client: the rows of a READY dataset are valid
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// rows returns the rows to score from the request, each of which is a JSON object or a string with
// one. hasDefault reports whether the defaultDataset is used if the request has none.
func (q previewQuestion) rows(v *domain.Violations, hasDefault bool) []map[string]any {
	v.Require(q.Evaluator != nil, "evaluator", "is required: the evaluator to run")
	v.Require(q.MaxSamples >= 0 && q.MaxSamples <= maxSamples, "maxSamples", "must be from 1 to %d, or 0 for the default",
		maxSamples)
	v.Require((len(q.SampleData) > 0 || hasDefault) && len(q.SampleData) <= maxSamples, "sampleData",
		"must have 1 to %d rows, unless the evaluator has a defaultDataset", maxSamples)
	samples := q.SampleData
	if q.MaxSamples > 0 {
		samples = samples[:min(len(samples), q.MaxSamples)]
	}
	var rows []map[string]any
	for i, sample := range samples {
		if text, ok := sample.(string); ok {
			var parsed any
			_ = json.Unmarshal([]byte(text), &parsed) // invalid JSON leaves parsed nil, which is no object
			sample = parsed
		}
		row, ok := sample.(map[string]any)
		v.Require(ok, fmt.Sprintf("sampleData[%d]", i), "must be a JSON object, or a string that contains one")
		if ok {
			v.Require(row["messages"] != nil, fmt.Sprintf("sampleData[%d].messages", i),
				"is required: a list of messages, the last of which is the response that is scored")
		}
		rows = append(rows, row)
	}
	return rows
}

// checkCode adds the violations of an evaluator whose code is in the request.
func (e *PreviewedEvaluator) checkCode(v *domain.Violations, now time.Time) {
	if e == nil {
		return // the method rows adds the violation for a missing evaluator
	}
	var violations domain.Violations
	if inline, _ := e.Inline(&violations); len(inline) == 0 {
		return
	}
	_, err := domain.CreateEvaluator{EvaluatorSpec: e.EvaluatorSpec}.Decide(domain.Evaluator{}, now)
	if err == nil {
		err = violations.Err()
	}
	if domainErr, ok := prefixedBy("evaluator.", err).(*domain.Error); ok {
		*v = append(*v, domainErr.Violations...)
	}
}

// prepareCode writes the code of the evaluator into the directory dir, and decrypts the evaluator's
// secrets for it.
func prepareCode(c *call, e PreviewedEvaluator, dir string) (code engines.EvaluatorCode, err error) {
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
		v.Require(e.Name != "", "evaluator", "must have either criteria with code, or the name of an evaluator of "+
			"accounts/%s",
			c.Account)
		v.Require(e.Name == "" || ok && row.Name.Account() == c.Account, "evaluator.name",
			"evaluator %s does not exist in accounts/%s: create it, or use another evaluator", wire.Quote(e.Name), c.Account)
		if err := v.Err(); err != nil {
			return code, err
		}
		build, ok := row.State.BuildOf(row.State.Active)
		if !ok {
			return code, domain.Errorf(domain.FailedPrecondition, "%s has no successful build: its state is %s "+
				"(%s)", row.Name, row.State.State,
				row.State.Status.Message)
		}
		if err := fetchCode(c, build.Files, dir); err != nil {
			return code, c.missingFiles(err, evaluators.noun, row.Name, build.Files, activeCode)
		}
		entry, names = build.Entry, row.State.Secrets
	}
	code = engines.EvaluatorCode{Dir: dir, EntryFile: entry.File, EntryFunc: entry.Func}
	if len(names) > 0 {
		if err := c.Principal.Require(request.ManageSecrets); err != nil {
			return code, err
		}
		code.Env, err = sealed.Resolver{Rows: c.World, Open: c.Sealer.Open,
			By: secretReader(c, sealed.PreviewEvaluator, domain.Name(e.Name))}.Values(c.Ctx, c.Account,
			"evaluator.secrets", names)
	}
	return code, err
}

// activeCode returns the code files of an evaluator's active revision; false if the evaluator does
// not exist.
func activeCode(v *projections.View, name domain.Name) (domain.Files, bool) {
	row, ok := v.Evaluators.Get(name)
	if !ok {
		return domain.Files{}, false
	}
	build, _ := row.State.BuildOf(row.State.Active)
	return build.Files, true
}

func fetchCode(c *call, files domain.Files, dir string) error {
	for _, name := range wire.SortedKeys(files.Sizes) {
		content, err := c.Uploads.Blobs.Get(c.Ctx, files.Prefix+name)
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
		return domain.Errorf(domain.InvalidArgument, "the file name %s %s", wire.Quote(name), domain.CodePathRule)
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

// scoreRows scores rows one after the other until ctx is done. For a row that was not scored by
// then, the Reason of its result states the time limit.
func scoreRows(ctx context.Context, scorer engines.Scorer, code engines.EvaluatorCode,
	rows []map[string]any) (answer previewAnswer, err error) {
	evaluation, err := scorer.Open(ctx, code)
	if err != nil {
		return answer, err
	}
	defer func() { err = cmp.Or(err, evaluation.Close()) }()
	answer = previewAnswer{TotalSamples: len(rows), Stdout: []string{}, Stderr: []string{}}
	for _, row := range rows {
		scores, err := evaluation.Score(ctx, []map[string]any{row})
		if ctx.Err() != nil {
			scores = []engines.Score{{Reason: fmt.Sprintf("not scored: the preview exceeded its limit of %s", previewTime)}}
		} else if err != nil {
			return answer, err
		}
		one := scores[0]
		result := PreviewResult{Success: one.Valid, Score: one.Value, PerMetricEvals: one.Metrics,
			Reason: sealed.Redact(one.Reason, code.Env)}
		if result.PerMetricEvals == nil {
			result.PerMetricEvals = map[string]float64{}
		}
		answer.Results = append(answer.Results, result)
		answer.Stdout, answer.Stderr = append(answer.Stdout, sealed.Redact(one.Stdout, code.Env)),
			append(answer.Stderr, sealed.Redact(one.Stderr, code.Env))
	}
	return answer, nil
}

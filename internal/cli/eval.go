package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

const (
	// maxPreviewRows is the maximum number of rows that one request scores, because a request may
	// take at most a minute.
	maxPreviewRows = 10
	maxRowBytes    = 64 << 20 // maximum size of a row; the server has a lower limit for the size of a request
)

// evalFlags are the flags of `anneal eval`.
type evalFlags struct {
	file, dataset, evaluator string
	models                   []string
	maxRows, show, maxTokens int
}

func evalCommand() *cobra.Command {
	var flags evalFlags
	c := &cobra.Command{Use: "eval",
		Short: "Send held-out rows to models, and count the correct responses or score them",
		Long: "Send held-out rows to models, at temperature 0, and count the responses that equal the expected one: " +
			"the completion, the preferred output, the ground truth or the last message of the row. With --evaluator, " +
			"the evaluator scores the responses instead.",
		Args: arguments(0, 0),
		Example: "  anneal eval --file examples/packing-codes-heldout.jsonl --model anneal-base --model codes\n  " +
			"anneal eval --file examples/shout-heldout.jsonl --model anneal-base --evaluator shout",
		RunE: func(c *cobra.Command, _ []string) error { return flags.eval(c) }}
	f := c.Flags()
	f.StringVarP(&flags.file, "file", "f", "", "JSONL file of rows, in a format of datasets")
	f.StringVar(&flags.dataset, "dataset", "", "dataset whose rows to send, instead of --file")
	f.StringArrayVarP(&flags.models, "model", "m", nil, "`MODEL`, deployment (accounts/A/deployments/D) or deployment "+
		"alias to send the rows to; repeatable")
	f.StringVar(&flags.evaluator, "evaluator", "", "evaluator that scores the responses")
	f.IntVar(&flags.maxRows, "max", 0, "maximum number of rows to send (default: all)")
	f.IntVar(&flags.show, "show", 8, "number of rows to print")
	f.IntVar(&flags.maxTokens, "max-tokens", 64, "maximum number of tokens to generate for each row")
	bindModel(c, modelNamesHint)
	bindReference(c, "evaluator", "evaluator.name", "evaluators")
	bindReference(c, "dataset", "dataset", "datasets")
	return c
}

// An evaluation is the result of `anneal eval` for one model.
type evaluation struct {
	Model     string   `json:"model"`
	Rows      int      `json:"rows"`
	Expected  int      `json:"expected"`            // number of rows with an expected response
	Exact     int      `json:"exact"`               // number of responses that equal the expected one
	Scored    int      `json:"scored"`              // number of responses to which the evaluator gave a valid score
	MeanScore *float64 `json:"meanScore,omitempty"` // mean of the scores; nil if there are none

	sum float64 // sum of the scores, to compute MeanScore
}

func (q *evalFlags) eval(c *cobra.Command) error {
	if (q.file == "") == (q.dataset == "") || len(q.models) == 0 {
		return usage.Errorf("either --file or --dataset is required, and --model at least once")
	}
	if q.show < 0 {
		return usage.Errorf("--show %d must not be negative", q.show)
	}
	if q.maxTokens < 1 {
		return usage.Errorf("--max-tokens %d must be at least 1", q.maxTokens)
	}
	client, err := newClient(c)
	if err != nil {
		return err
	}
	files, done, err := q.files(c.Context(), client)
	if err != nil {
		return err
	}
	defer done()
	total := 0 // number of rows; all rows are checked before the first one is sent
	if err := q.each(files, func(*heldOutRow) error { total++; return nil }); err != nil {
		return err
	}
	if total == 0 {
		return fmt.Errorf("%s contains no rows: give a JSONL file or a dataset with at least one row",
			cmp.Or(q.file, q.dataset))
	}
	run := evalRun{evalFlags: q, cmd: c, client: client, total: total}
	for _, name := range q.models {
		model, err := resolveModel(c.Context(), c, client, name)
		if err != nil {
			return err
		}
		run.models, run.results = append(run.models, model), append(run.results, evaluation{Model: model})
	}
	if inJSON, _ := wantsJSON(c); inJSON {
		if run.printed, err = newRowSpool(); err != nil {
			return err
		}
		defer run.printed.close()
	}
	err = run.send(files)
	if run.results[0].Rows > 0 || err == nil { // after an error, print the results of the rows before it
		err = errors.Join(run.print(), err)
	}
	return err
}

// An evalRun is an evaluation in progress. It sends rows in batches, so that its memory does not
// depend on their number.
type evalRun struct {
	*evalFlags
	cmd    *cobra.Command
	client *client
	total  int
	models []string // resource names or aliases of the models

	batch   []*heldOutRow // rows that were sent, but whose responses are not counted yet
	results []evaluation  // results by the index of the model
	shown   []*heldOutRow // the first rows sent, which the table shows
	printed *rowSpool     // collects all rows for -o json; nil for a table
}

// send sends all rows of the files, and counts the responses.
func (r *evalRun) send(files []rowFile) error {
	out := r.cmd.ErrOrStderr()
	err := r.each(files, func(row *heldOutRow) error {
		if onTerminal(out) {
			redraw(out, fmt.Sprintf("row %d of %d", row.number, r.total))
		}
		if err := row.send(r.cmd.Context(), r.client, r.models, r.maxTokens, 0); err != nil {
			return fmt.Errorf("row %d of %s: %w", row.number, cmp.Or(r.file, r.dataset), err)
		}
		if r.batch = append(r.batch, row); len(r.batch) == maxPreviewRows {
			return r.count()
		}
		return nil
	})
	if onTerminal(out) {
		redraw(out, "")
	}
	if err == nil {
		err = r.count()
	}
	return err
}

// count scores the responses to the rows of the batch, if there is an evaluator, and counts them.
// It also counts them if scoring fails.
func (r *evalRun) count() (err error) {
	if r.evaluator != "" {
		err = scoreResponses(r.cmd, r.client, r.client.name("evaluators", r.evaluator), r.batch, len(r.models))
	}
	for _, row := range r.batch {
		for i := range r.results {
			r.results[i].add(row, i)
		}
		if len(r.shown) < r.show {
			r.shown = append(r.shown, row)
		}
		if r.printed != nil {
			item := map[string]any{"row": row.fields, "responses": row.responses}
			if r.evaluator != "" {
				item["scores"] = row.scores
			}
			err = errors.Join(err, r.printed.add(item))
		}
	}
	r.batch = nil
	return err
}

// add counts a row. model is the index of the model whose response is counted.
func (e *evaluation) add(row *heldOutRow, model int) {
	e.Rows++
	if row.isExact(model) {
		e.Exact++
	}
	if row.expected != "" {
		e.Expected++
	}
	if score := row.scores[model]; score != nil {
		e.Scored++
		e.sum += *score
		mean := e.sum / float64(e.Scored)
		e.MeanScore = &mean
	}
}

// scoreResponses stores the scores that an evaluator gives to the responses to rows. models is the
// number of models.
func scoreResponses(cmd *cobra.Command, c *client, evaluator string, rows []*heldOutRow, models int) error {
	for model := range models {
		samples := make([]any, len(rows))
		for i, row := range rows {
			samples[i] = row.sample(model)
		}
		var response struct {
			Results []struct {
				Score   float64
				Success bool
				Reason  string
			}
		}
		body := map[string]any{"evaluator": map[string]any{"name": evaluator}, "sampleData": samples}
		err := c.call(cmd.Context(), http.MethodPost, c.path("evaluators:previewEvaluator"), nil, body, &response)
		if err != nil {
			return err
		}
		if len(response.Results) != len(rows) {
			return fmt.Errorf("evaluator %s returned %d results for %d rows", evaluator, len(response.Results), len(rows))
		}
		for i, result := range response.Results {
			if result.Success {
				rows[i].scores[model] = &result.Score
				continue
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "row %d: evaluator %s returned no valid score: %s\n", rows[i].number,
				id(evaluator), result.Reason)
		}
	}
	return nil
}

// print prints the first rows as a table, and then the result of each model. With -o json it prints
// all rows and results as JSON.
func (r *evalRun) print() error {
	out := r.cmd.OutOrStdout()
	if r.printed != nil {
		return r.printed.print(out, r.results)
	}
	if len(r.shown) > 0 {
		table := [][]string{{"PROMPT", "EXPECTED"}}
		for _, name := range r.evalFlags.models {
			table[0] = append(table[0], strings.ToUpper(id(name)))
		}
		for _, row := range r.shown {
			cells := []string{shorten(cmp.Or(row.prompt, lastContent(row.messages)), 60), shorten(row.expected, 24)}
			for i, response := range row.responses {
				cells = append(cells, shorten(response, 24)+" "+row.outcome(i))
			}
			table = append(table, cells)
		}
		if err := printTable(out, table); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	return printResults(out, r.results)
}

// printResults prints one line for each model.
func printResults(out io.Writer, results []evaluation) error {
	table := [][]string{{"MODEL", "ROWS", "EXACT", "MEAN SCORE"}}
	for _, result := range results {
		score := "-"
		if result.MeanScore != nil {
			score = fmt.Sprintf("%.2f", *result.MeanScore)
		}
		exact := "-"
		if result.Expected > 0 {
			exact = fmt.Sprintf("%d of %d (%.0f%%)", result.Exact, result.Expected,
				100*float64(result.Exact)/float64(result.Expected))
		}
		table = append(table, []string{id(result.Model), fmt.Sprint(result.Rows), exact, score})
	}
	return printTable(out, table)
}

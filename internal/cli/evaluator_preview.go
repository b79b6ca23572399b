package cli

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"anneal/internal/usage"
)

// previewFlags are the flags of `anneal evaluator preview`.
type previewFlags struct {
	file, dir, entryPoint, model string
	maxRows, maxTokens, perRow   int
	temperature                  float64
}

func evaluatorPreview() *cobra.Command {
	var flags previewFlags
	c := &cobra.Command{Use: "preview [ID]", Short: "Run an evaluator, or a directory of code, on rows of a JSONL file",
		Args: arguments(0, 1),
		Example: "  anneal evaluator preview --dir examples/exact-match --file examples/exact-match/rows.jsonl\n  " +
			"anneal evaluator preview exact --file rows.jsonl --max 5\n  " +
			"anneal evaluator preview exact --file rows.jsonl --model polite --samples 4",
		Long: "With --model, the rows are first sent to the model, and its responses are scored instead of the last " +
			"messages of the rows. With several responses to each row, the command counts the rows whose responses " +
			"have " +
			"different scores: a reinforcement job learns only from these.",
		RunE: func(c *cobra.Command, args []string) error { return flags.preview(c, args) }}
	f := c.Flags()
	f.StringVar(&flags.file, "file", "", "JSONL file of rows; the last message of a row is the response that is scored")
	f.StringVar(&flags.dir, "dir", "", "directory of code to run, instead of the code of an evaluator")
	f.StringVar(&flags.entryPoint, "entry-point", "", "function in --dir that scores, such as main.py::evaluate")
	f.IntVar(&flags.maxRows, "max", 0, "maximum number of rows (default: all)")
	f.StringVarP(&flags.model, "model", "m", "", "`MODEL`, deployment or deployment alias whose responses to score")
	bindModel(c, modelNamesHint)
	f.IntVar(&flags.maxTokens, "max-tokens", 128, "maximum number of tokens to generate for each response, with --model")
	f.IntVar(&flags.perRow, "samples", 1, "number of responses to each row, with --model")
	f.Float64Var(&flags.temperature, "temperature", 0,
		"sampling temperature, with --model (default: 0, and 0.7 with several samples)")
	return c
}

// check returns a usage error if flags exclude each other or are out of range.
func (p *previewFlags) check(c *cobra.Command, args []string) error {
	switch {
	case p.file == "" || (p.dir == "") == (len(args) == 0):
		return usage.Errorf("--file is required, and either the ID of an evaluator or --dir")
	case p.maxTokens < 1:
		return usage.Errorf("--max-tokens %d must be at least 1", p.maxTokens)
	case p.perRow < 1 || p.perRow > maxSamples:
		return usage.Errorf("--samples %d must be from 1 to %d", p.perRow, maxSamples)
	case p.temperature < 0 || p.temperature > 2:
		return usage.Errorf("--temperature %g must be from 0 to 2", p.temperature)
	}
	for _, flag := range []string{"max-tokens", "samples", "temperature"} {
		if p.model == "" && c.Flags().Changed(flag) {
			return usage.Errorf("--%s requires --model", flag)
		}
	}
	if !c.Flags().Changed("temperature") && p.perRow > 1 {
		p.temperature = 0.7 // so that the responses to a row differ; also the default of reinforcement jobs
	}
	return nil
}

func (p *previewFlags) preview(c *cobra.Command, args []string) error {
	if err := p.check(c, args); err != nil {
		return err
	}
	client, err := newClient(c)
	if err != nil {
		return err
	}
	evaluator := map[string]any{"entryPoint": p.entryPoint}
	if p.dir == "" {
		evaluator["name"] = client.name("evaluators", args[0])
	} else if evaluator["criteria"], err = inlineCode(p.dir); err != nil {
		return err
	}
	lines, err := readSamples(p.file)
	if err != nil {
		return err
	}
	if p.maxRows > 0 {
		lines = lines[:min(p.maxRows, len(lines))]
	}
	run := previewRun{previewFlags: p, cmd: c, client: client, evaluator: evaluator}
	if err := run.sample(lines); err != nil {
		return err
	}
	if err := run.score(); err != nil {
		return err
	}
	return run.print()
}

// inlineCode returns the files in a directory of code, as the API takes them in a criterion of an
// evaluator.
func inlineCode(dir string) (any, error) {
	contents := map[string]string{}
	names, err := codeFiles(dir)
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, err
		}
		contents[name] = string(text)
	}
	return []any{map[string]any{"type": "CODE_SNIPPETS", "codeSnippets": map[string]any{"fileContents": contents}}}, err
}

// readSamples returns the lines of a JSONL file, without empty lines.
func readSamples(path string) (samples []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line != "" {
			samples = append(samples, line)
		}
	}
	return samples, nil
}

package cli

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/usage"
)

// packedCode is the name of the archive of a directory with subdirectories.
const packedCode = "code.tar.gz"

// codeFiles lists the files of a directory of code that are not hidden.
func codeFiles(dir string) (names []string, err error) {
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		name, _ := filepath.Rel(dir, path)
		switch {
		case err != nil || name == ".":
			return err
		case entry.Name()[0] == '.' || entry.Name() == "__pycache__":
			if entry.IsDir() {
				return fs.SkipDir
			}
		case !entry.IsDir():
			names = append(names, filepath.ToSlash(name))
		}
		return nil
	})
	if err == nil && len(names) == 0 {
		err = fmt.Errorf("%s contains no files", dir)
	}
	return names, err
}

// readCode returns the files of a directory of code. One with subdirectories is packed into an
// archive, which done removes.
func readCode(dir string) (code modelFiles, done func(), err error) {
	code, done = modelFiles{dir: dir, sizes: map[string]int64{}}, func() {}
	names, err := codeFiles(dir)
	packed := false
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))) // follows links
		if err != nil {
			return code, done, err
		}
		code.sizes[name] = info.Size()
		packed = packed || info.Size() == 0 || name[0] == '_' || strings.Contains(name, "/") // only an archive can contain these
	}
	if err != nil || !packed {
		return code, done, err
	}
	return packCode(dir, names)
}

func packCode(dir string, names []string) (code modelFiles, done func(), err error) {
	code = modelFiles{sizes: map[string]int64{}}
	if code.dir, err = os.MkdirTemp("", "anneal-code-"); err != nil {
		return code, func() {}, err
	}
	done = func() { _ = os.RemoveAll(code.dir) }
	out, err := os.Create(filepath.Join(code.dir, packedCode))
	if err != nil {
		return code, done, err
	}
	zipped := gzip.NewWriter(out)
	packed := tar.NewWriter(zipped)
	for _, name := range names {
		if err = errors.Join(err, packFile(packed, filepath.Join(dir, filepath.FromSlash(name)), name)); err != nil {
			break
		}
	}
	err = errors.Join(err, packed.Close(), zipped.Close())
	info, statErr := out.Stat()
	if err = errors.Join(err, statErr, out.Close()); err == nil {
		code.sizes[packedCode] = info.Size()
	}
	return code, done, err
}

func packFile(to *tar.Writer, path, name string) error {
	file, err := os.Open(path)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if err := to.WriteHeader(&tar.Header{Name: name, Size: info.Size(), Mode: 0o644, Typeflag: tar.TypeReg}); err != nil {
		return err
	}
	_, err = io.Copy(to, file)
	return err
}

// uploadCode uploads the code of the pending revision, and returns the evaluator; with wait, once it is
// built.
func uploadCode(cmd *cobra.Command, c *client, id string, code modelFiles, wait bool) (item map[string]any, err error) {
	name := c.name("evaluators", id)
	if err := putFiles(cmd, c, name, code); err != nil {
		return nil, err
	}
	if err = c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":validateUpload", nil, struct{}{}, &item); err != nil || !wait {
		return item, err
	}
	item, err = awaitBuild(cmd, c, name)
	return item, onInterrupt(cmd, err, "The code is uploaded and still being built; `anneal evaluator get %s` shows the result.", id)
}

// awaitBuild waits until an evaluator is built. If the build fails, it prints the log.
func awaitBuild(cmd *cobra.Command, c *client, name string) (item map[string]any, err error) {
	for {
		item = nil // removed fields must not remain
		if err := c.call(cmd.Context(), http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		switch cell(item, "state") {
		case domain.EvaluatorActive:
			return item, nil
		case domain.EvaluatorFailed:
			_ = copyBuildLog(cmd, c, name, cmd.ErrOrStderr()) // the status has the reason
			return nil, fmt.Errorf("evaluator %s could not be built: %s", id(name), cell(item, statusMessage))
		}
		if err := sleep(cmd.Context(), watchPoll); err != nil {
			return nil, err
		}
	}
}

// copyBuildLog writes the log of the newest build.
func copyBuildLog(cmd *cobra.Command, c *client, name string, to io.Writer) error {
	var at struct {
		URL string `json:"buildLogSignedUri"`
	}
	if err := c.call(cmd.Context(), http.MethodGet, "/v1/"+name+":getBuildLogEndpoint", nil, nil, &at); err != nil {
		return err
	}
	res, err := c.openURL(cmd.Context(), at.URL)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	_, err = io.Copy(to, res.Body)
	return err
}

func evaluatorLogs() *cobra.Command {
	return &cobra.Command{Use: "logs ID", Short: "Show the log of the newest build", Args: arguments(1, 1), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		name := client.name("evaluators", args[0])
		if inJSON, err := wantsJSON(c); err != nil || !inJSON {
			return errors.Join(err, copyBuildLog(c, client, name, c.OutOrStdout()))
		}
		var log strings.Builder
		if err := copyBuildLog(c, client, name, &log); err != nil {
			return err
		}
		return printJSON(c.OutOrStdout(), map[string]any{"log": log.String()})
	}}
}

func evaluatorUpload() *cobra.Command {
	var noWait bool
	c := &cobra.Command{Use: "upload ID DIR", Short: "Upload the code of a new revision and wait until it is built", Args: arguments(2, 2), RunE: func(c *cobra.Command, args []string) error {
		client, err := newClient(c)
		if err != nil {
			return err
		}
		code, done, err := readCode(args[1])
		defer done()
		if err != nil {
			return err
		}
		name := client.name("evaluators", args[0])
		query := url.Values{"prepareCodeUpload": {"true"}}
		if err := client.call(c.Context(), http.MethodPatch, "/v1/"+name, query, map[string]any{"name": name}, nil); err != nil {
			return err
		}
		item, err := uploadCode(c, client, args[0], code, !noWait)
		if err != nil {
			return err
		}
		return printItem(c, item, evaluators.details...)
	}}
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until it is built")
	return c
}

func evaluatorPreview() *cobra.Command {
	var file, dir, entryPoint string
	var maxRows int
	c := &cobra.Command{Use: "preview [ID]", Short: "Run an evaluator, or a directory of code, on rows of a JSONL file", Args: arguments(0, 1),
		Example: "  anneal evaluator preview --dir examples/exact-match --file examples/exact-match/rows.jsonl\n  anneal evaluator preview exact --file rows.jsonl --max 5",
		RunE: func(c *cobra.Command, args []string) error {
			if file == "" || (dir == "") == (len(args) == 0) {
				return usage.Errorf("--file is required, and either the ID of an evaluator or --dir")
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			evaluator := map[string]any{"entryPoint": entryPoint}
			if dir == "" {
				evaluator["name"] = client.name("evaluators", args[0])
			} else if evaluator["criteria"], err = inlineCode(dir); err != nil {
				return err
			}
			samples, err := readSamples(file)
			if err != nil {
				return err
			}
			if maxRows > 0 {
				samples = samples[:min(maxRows, len(samples))]
			}
			return printPreview(c, client, map[string]any{"evaluator": evaluator, "sampleData": samples})
		}}
	f := c.Flags()
	f.StringVar(&file, "file", "", "JSONL file of rows; the last message of a row is the response that is scored")
	f.StringVar(&dir, "dir", "", "directory of code to run instead of an evaluator")
	f.StringVar(&entryPoint, "entry-point", "", "function in --dir that scores, such as main.py::evaluate")
	f.IntVar(&maxRows, "max", 0, "maximum number of rows (default: all)")
	return c
}

// inlineCode returns a directory of code as a criterion of an evaluator.
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

// readSamples returns the lines of a file that are not empty.
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

func printPreview(cmd *cobra.Command, c *client, body map[string]any) error {
	var answer struct {
		Results []map[string]any `json:"results"`
		Stdout  []string         `json:"stdout"`
		Stderr  []string         `json:"stderr"`
	}
	if err := c.call(cmd.Context(), http.MethodPost, c.path("evaluators:previewEvaluator"), nil, body, &answer); err != nil {
		return err
	}
	for i, texts := range [][]string{answer.Stdout, answer.Stderr} {
		for row, text := range texts {
			if text != "" {
				fmt.Fprintf(cmd.ErrOrStderr(), "row %d, %s:\n%s\n", row+1, []string{"stdout", "stderr"}[i], strings.TrimRight(text, "\n"))
			}
		}
	}
	return printItems(cmd, answer.Results, column{"SCORE", "score"}, column{"VALID", "success"}, column{"METRICS", "perMetricEvals"}, column{"REASON", "reason"})
}

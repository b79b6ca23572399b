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
)

// packedCode is the name of the archive that readCode creates.
const packedCode = "code.tar.gz"

// codeFiles returns the paths of the files in a directory of code, except hidden files and files in
// hidden directories or in a __pycache__.
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
		err = fmt.Errorf("%s contains no files that can be uploaded: hidden files are ignored", dir)
	}
	return names, err
}

// readCode returns the files of a directory of code, as they are uploaded. If single uploads do not
// support a file, because it is empty or in a subdirectory, code consists of one archive of all
// files, which done removes.
func readCode(dir string) (code modelFiles, done func(), err error) {
	code, done = modelFiles{dir: dir, sizes: map[string]int64{}}, func() {}
	names, err := codeFiles(dir)
	packed := false
	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, filepath.FromSlash(name))) // Stat follows symbolic links
		if err != nil {
			return code, done, err
		}
		code.sizes[name] = info.Size()
		// Single uploads do not support empty files, names that begin with an underscore, and
		// subdirectories.
		packed = packed || info.Size() == 0 || name[0] == '_' || strings.Contains(name, "/")
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

// uploadCode uploads the code of the evaluator's pending revision, and returns the evaluator. If
// wait is true, it first waits until the evaluator is built.
func uploadCode(cmd *cobra.Command, c *client, id string, code modelFiles, wait bool) (item map[string]any, err error) {
	name := c.name("evaluators", id)
	if err := putFiles(cmd, c, name, code); err != nil {
		return nil, err
	}
	if err = c.call(cmd.Context(), http.MethodPost, "/v1/"+name+":validateUpload", nil, struct{}{}, &item); err != nil ||
		!wait {
		return item, err
	}
	item, err = awaitBuild(cmd, c, name)
	return item, onInterrupt(cmd, err,
		"The code is uploaded and still being built; `anneal evaluator get %s` shows the result.", id)
}

// notBuilt is the beginning of the last line in the log of a failed build. The message of the
// evaluator's status follows it.
const notBuilt = "not built: "

// awaitBuild waits until an evaluator is built, and returns it. If the build fails, awaitBuild
// prints the log of the build and returns an error.
func awaitBuild(cmd *cobra.Command, c *client, name string) (item map[string]any, err error) {
	for {
		item = nil // the next response may lack fields that this one has
		if err := c.call(cmd.Context(), http.MethodGet, "/v1/"+name, nil, nil, &item); err != nil {
			return nil, err
		}
		switch cell(item, "state") {
		case domain.EvaluatorActive:
			return item, nil
		case domain.EvaluatorFailed:
			var log strings.Builder
			// The error is ignored, because the status has the reason of the failure.
			_ = copyBuildLog(cmd, c, name, &log)
			text, message := strings.TrimRight(log.String(), "\n"), cell(item, statusMessage)
			// The error below contains this line.
			text = strings.TrimRight(strings.TrimSuffix(text, notBuilt+message), "\n")
			if text != "" {
				fmt.Fprintln(cmd.ErrOrStderr(), text)
			}
			return nil, fmt.Errorf("evaluator %s could not be built: %s", id(name), message)
		}
		if err := sleep(cmd.Context(), watchPoll); err != nil {
			return nil, err
		}
	}
}

// copyBuildLog writes the log of the newest build of an evaluator to a writer.
func copyBuildLog(cmd *cobra.Command, c *client, name string, w io.Writer) error {
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
	_, err = io.Copy(w, res.Body)
	return err
}

func evaluatorLogs() *cobra.Command {
	return &cobra.Command{Use: "logs ID", Short: "Show the log of the newest build", Args: arguments(1, 1),
		RunE: func(c *cobra.Command, args []string) error {
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
	c := &cobra.Command{Use: "upload ID DIR", Short: "Upload the code of a new revision and wait until it is built",
		Args: arguments(2, 2), RunE: func(c *cobra.Command, args []string) error {
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
			if err := client.call(c.Context(), http.MethodPatch, "/v1/"+name, query, map[string]any{"name": name},
				nil); err != nil {
				return err
			}
			item, err := uploadCode(c, client, args[0], code, !noWait)
			if err != nil {
				return err
			}
			return printEvaluator(c, item)
		}}
	c.Flags().BoolVar(&noWait, "no-wait", false, "do not wait until the evaluator is built")
	return c
}

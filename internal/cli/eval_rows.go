package cli

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// A heldOutRow is a row of a dataset whose prompt is sent to models.
type heldOutRow struct {
	number   int            // number of the row among the rows of all files, from 1
	fields   map[string]any // decoded JSON of the row
	prompt   string         // prompt of a completion; "" if the row is a chat
	messages []any          // messages of a chat, without the expected response
	expected string         // response that the row expects; "" if the row has none
	// Responses and scores have one element for each model. A score is nil if the evaluator
	// returned no valid score.
	responses []string
	scores    []*float64
}

// A rowFile is a JSONL file of rows. name is its name in messages.
type rowFile struct{ name, path string }

// files returns the files with the rows, and a function that removes temporary ones. It downloads
// the rows of --dataset, but at most --max, into a temporary directory.
func (q *evalFlags) files(ctx context.Context, client *client) (all []rowFile, done func(), err error) {
	if q.dataset == "" {
		return []rowFile{{q.file, q.file}}, func() {}, nil
	}
	temp, err := os.MkdirTemp("", "anneal-eval-")
	if err != nil {
		return nil, nil, err
	}
	done = func() { _ = os.RemoveAll(temp) }
	var endpoint struct {
		URLs map[string]string `json:"filenameToSignedUrls"`
	}
	path := "/v1/" + client.name("datasets", q.dataset) + ":getDownloadEndpoint"
	err = client.call(ctx, http.MethodGet, path, nil, nil, &endpoint)
	rows := 0
	for _, name := range slices.Sorted(maps.Keys(endpoint.URLs)) {
		if err != nil || q.maxRows > 0 && rows >= q.maxRows {
			break
		}
		file := rowFile{id(q.dataset) + "/" + name, filepath.Join(temp, fmt.Sprintf("%d.jsonl", len(all)))}
		err = q.fetch(ctx, client, endpoint.URLs[name], file.path, &rows)
		all = append(all, file)
	}
	if err != nil {
		done()
	}
	return all, done, err
}

// fetch downloads the file at a URL to path. With --max it adds the number of downloaded lines to
// rows, and stops when rows reaches --max.
func (q *evalFlags) fetch(ctx context.Context, client *client, link, path string, rows *int) (err error) {
	res, err := client.openURL(ctx, link)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, file.Close()) }()
	if q.maxRows == 0 {
		_, err = io.Copy(file, res.Body)
		return err
	}
	lines := scanRows(res.Body)
	for *rows < q.maxRows && lines.Scan() {
		if len(bytes.TrimSpace(lines.Bytes())) > 0 {
			*rows++
		}
		if _, err := file.Write(append(lines.Bytes(), '\n')); err != nil {
			return err
		}
	}
	return lines.Err()
}

func scanRows(r io.Reader) *bufio.Scanner {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxRowBytes)
	return lines
}

// each calls visit with the rows of the files, at most --max in total. If the responses will not be
// scored, each row must have an expected response.
func (q *evalFlags) each(files []rowFile, visit func(*heldOutRow) error) error {
	rows := 0
	for _, from := range files {
		if err := q.eachOf(from, &rows, visit); err != nil {
			return err
		}
	}
	return nil
}

func (q *evalFlags) eachOf(from rowFile, rows *int, visit func(*heldOutRow) error) error {
	file, err := os.Open(from.path)
	if err != nil {
		return err
	}
	defer file.Close()
	lines := scanRows(file)
	for number := 1; (q.maxRows == 0 || *rows < q.maxRows) && lines.Scan(); number++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		*rows++
		row := &heldOutRow{number: *rows}
		fields := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		fields.UseNumber()
		if err := fields.Decode(&row.fields); err != nil {
			return fmt.Errorf("%s line %d is not a JSON object: %w", from.name, number, err)
		}
		row.split()
		if row.prompt == "" && len(row.messages) == 0 {
			return fmt.Errorf("%s line %d has neither a prompt nor messages", from.name, number)
		}
		if row.expected == "" && q.evaluator == "" {
			return fmt.Errorf("%s line %d has no expected response: add a completion, a preferred_output, a "+
				"ground_truth or a last message of the assistant, or use --evaluator", from.name, number)
		}
		if err := visit(row); err != nil {
			return err
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s: %w", from.name, err)
	}
	return nil
}

// split sets the prompt or the messages of a row, and its expected response.
func (r *heldOutRow) split() {
	r.prompt, _ = r.fields["prompt"].(string)
	r.expected, _ = r.fields["completion"].(string)
	r.messages, _ = r.fields["messages"].([]any)
	if input, ok := r.fields["input"].(map[string]any); ok { // the row is one of a preference dataset
		r.messages, _ = input["messages"].([]any)
		r.expected = lastContent(r.fields["preferred_output"])
	}
	if last := len(r.messages) - 1; last >= 0 {
		if message, _ := r.messages[last].(map[string]any); message["role"] == "assistant" {
			r.expected = lastContent(r.messages)
			r.messages = r.messages[:last]
		}
	}
	if truth, ok := r.fields["ground_truth"].(string); ok {
		r.expected = truth
	}
}

// lastContent returns the content of the last message in a decoded JSON array of messages; "" if
// there is none.
func lastContent(array any) string {
	messages, _ := array.([]any)
	if len(messages) == 0 {
		return ""
	}
	message, _ := messages[len(messages)-1].(map[string]any)
	text, _ := message["content"].(string)
	return text
}

// send sends the row's prompt to all models concurrently, and stores their responses.
func (r *heldOutRow) send(ctx context.Context, c *client, models []string, maxTokens int, temperature float64) error {
	r.responses, r.scores = make([]string, len(models)), make([]*float64, len(models))
	errs := make([]error, len(models))
	var requests sync.WaitGroup
	for i, model := range models {
		requests.Go(func() {
			body := map[string]any{"model": model, "max_tokens": maxTokens, "temperature": temperature}
			path := "/inference/v1/completions"
			if r.prompt != "" {
				body["prompt"] = r.prompt
			} else {
				path, body["messages"] = "/inference/v1/chat/completions", r.messages
			}
			var response completion
			if err := c.call(ctx, http.MethodPost, path, nil, body, &response); err != nil {
				errs[i] = fmt.Errorf("%s: %w", model, err)
			}
			r.responses[i] = response.text()
		})
	}
	requests.Wait()
	return cmp.Or(errs...)
}

// sample returns the row as evaluators score it: with the response of a model as its last message.
func (r *heldOutRow) sample(model int) map[string]any {
	messages := r.messages
	if r.prompt != "" {
		messages = []any{map[string]any{"role": "user", "content": r.prompt}}
	}
	response := map[string]any{"role": "assistant", "content": r.responses[model]}
	sample := maps.Clone(r.fields)
	sample["messages"] = append(messages[:len(messages):len(messages)], response)
	return sample
}

func (r *heldOutRow) isExact(model int) bool {
	return r.expected != "" && strings.TrimSpace(r.responses[model]) == strings.TrimSpace(r.expected)
}

// outcome returns the score of a response for the table. Without an evaluator, it returns a sign
// that shows whether the response equals the expected one; "" if the row has none.
func (r *heldOutRow) outcome(model int) string {
	switch {
	case r.scores[model] != nil:
		return fmt.Sprintf("%.2f", *r.scores[model])
	case r.expected == "":
		return ""
	case r.isExact(model):
		return "✓"
	}
	return "✗"
}

// shorten returns a text on one line. A text of more than length characters is cut, and ends with
// "…".
func shorten(text string, length int) string {
	text = strings.Join(strings.Fields(text), " ")
	if runes := []rune(text); len(runes) > length {
		text = string(runes[:length]) + "…"
	}
	return text
}

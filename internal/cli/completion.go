package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
)

func completeCommand() *cobra.Command {
	var flags completionFlags
	c := &cobra.Command{Use: "complete [PROMPT]",
		Short:   "Complete a prompt with a model; without PROMPT, read the prompt from standard input",
		Args:    arguments(0, 1),
		Example: `  anneal complete --model polite "good morning"` + "\n  anneal complete --model polite < prompt.txt",
		RunE: func(c *cobra.Command, args []string) error {
			prompt, err := readPrompt(c, args)
			if err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			body, err := flags.body(c)
			if err != nil {
				return err
			}
			body["prompt"] = prompt
			_, err = (&generation{client: client, cmd: c, path: "/inference/v1/completions"}).run(c.Context(), body)
			return err
		}}
	flags.add(c)
	return c
}

// completionFlags are the flags with the sampling parameters of a request.
type completionFlags struct {
	model             string
	maxTokens, topK   int
	temperature, topP float64
	seed              int64
	stop              []string
	stream            bool
}

// modelNamesHint is the hint that is printed if the server rejects the name of a model.
const modelNamesHint = "list the names of models with `anneal model names`"

func (q *completionFlags) add(c *cobra.Command) {
	f := c.Flags()
	defer bindModel(c, modelNamesHint+"; `anneal transcribe` transcribes speech")
	f.StringVarP(&q.model, "model", "m", domain.DefaultBaseModel,
		"model, deployment or deployment alias")
	f.IntVar(&q.maxTokens, "max-tokens", 128, "maximum number of tokens to generate")
	f.Float64Var(&q.temperature, "temperature", 0, "sampling temperature; 0 is greedy")
	f.Float64Var(&q.topP, "top-p", 1, "nucleus sampling probability")
	f.IntVar(&q.topK, "top-k", 0, "number of most likely tokens to sample from; 0 is all tokens")
	f.Int64Var(&q.seed, "seed", 0, "sampling seed, for reproducible responses")
	f.StringArrayVar(&q.stop, "stop", nil, "`TEXT` to stop at; up to 4")
	f.BoolVar(&q.stream, "stream", true, "print tokens as they are generated")
}

// body returns the body of a request with the sampling parameters whose flags are given.
func (q *completionFlags) body(c *cobra.Command) (map[string]any, error) {
	inJSON, err := wantsJSON(c)
	if err != nil {
		return nil, err
	}
	body := map[string]any{"model": q.model, "max_tokens": q.maxTokens, "temperature": q.temperature, "top_p": q.topP,
		"stream": q.stream && !inJSON}
	if q.topK > 0 {
		body["top_k"] = q.topK
	}
	if c.Flags().Changed("seed") {
		body["seed"] = q.seed
	}
	if len(q.stop) > 0 {
		body["stop"] = q.stop
	}
	return body, nil
}

// readPrompt returns the argument PROMPT. If it is "-" or absent, readPrompt returns the text of
// standard input.
func readPrompt(c *cobra.Command, args []string) (string, error) {
	if len(args) == 1 {
		return readText(c, args[0])
	}
	if in, ok := c.InOrStdin().(*os.File); ok && isTerminal(in) {
		return "", missingArguments(c, argumentNames(c))
	}
	prompt, err := readText(c, "-")
	if err == nil && strings.TrimSpace(prompt) == "" {
		return "", missingArguments(c, argumentNames(c))
	}
	return prompt, err
}

// readText returns the argument, or the text of standard input if the argument is "-".
func readText(c *cobra.Command, argument string) (string, error) {
	if argument != "-" {
		return argument, nil
	}
	read, err := readInput(c, argument)
	return strings.TrimRight(string(read), "\r\n"), err
}

// resolveModel returns the name of a model for a request. If the account has a model with the ID
// name, it returns the model's resource name. Otherwise it returns name itself, which the server
// resolves: a resource name, an alias of a deployment, or the ID of a deployment or of a deployed
// model. If the user gives an alias with --model, resolveModel prints the deployment.
func resolveModel(ctx context.Context, cmd *cobra.Command, c *client, name string) (string, error) {
	if strings.ContainsAny(name, "/#") {
		return name, nil
	}
	var list struct {
		Data []struct{ ID, Deployment string }
	}
	if err := c.call(ctx, http.MethodGet, "/inference/v1/models", nil, nil, &list); err != nil {
		return "", err
	}
	own, bound := c.name("models", name), ""
	for _, one := range list.Data {
		switch one.ID {
		case own:
			return own, nil
		case name:
			bound = one.Deployment
		}
	}
	if bound != "" && cmd.Flags().Changed("model") {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is an alias of the deployment %s\n", name, bound)
	}
	return name, nil
}

// A completion is a response of the server, or a chunk of a streamed response. A text completion
// has text, a chat completion has a message, and a chunk of a chat completion has a delta.
type completion struct {
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
		FinishReason string `json:"finish_reason"`
	} `json:"choices"`
	Error *struct {
		Message string `json:"message"`
	} `json:"error"`
}

// text returns the generated text.
func (a completion) text() (text string) {
	for _, choice := range a.Choices {
		text += choice.Text + choice.Message.Content + choice.Delta.Content
	}
	return text
}

// finishReason returns the finish_reason of the first choice; "" while the generation continues.
func (a completion) finishReason() string {
	if len(a.Choices) == 0 {
		return ""
	}
	return a.Choices[0].FinishReason
}

// A generation sends requests to a model and prints the responses.
type generation struct {
	*client
	cmd   *cobra.Command
	path  string
	model string // model name that the server accepted in an earlier request; "" before the first request
}

// run sends a request with a body, prints the response, and returns its text. If the body names a
// model without a slash, run first assumes that the name is the ID of a model of the account. If
// the server has no such model, run resolves the name and sends the request again.
func (g *generation) run(ctx context.Context, body map[string]any) (text string, err error) {
	given, _ := body["model"].(string)
	body["model"] = cmp.Or(g.model, g.modelName(given))
	text, err = g.send(ctx, body)
	if g.model == "" && body["model"] != given && isUnknownModel(err) {
		model, findErr := resolveModel(ctx, g.cmd, g.client, given)
		if findErr != nil || model == body["model"] {
			return text, cmp.Or(findErr, err)
		}
		body["model"] = model
		text, err = g.send(ctx, body)
	}
	if err == nil {
		g.model, _ = body["model"].(string)
	}
	return text, err
}

func isUnknownModel(err error) bool {
	var failed *apiError
	return errors.As(err, &failed) && failed.Reason == "MODEL_NOT_FOUND"
}

// modelName returns the resource name of the account's model with the ID name. It returns a name
// with slashes unchanged.
func (g *generation) modelName(name string) string {
	if strings.ContainsAny(name, "/#") {
		return name
	}
	return g.name("models", name)
}

// send sends a request, prints the text of the response on its own line, and returns the text.
func (g *generation) send(ctx context.Context, body map[string]any) (text string, err error) {
	out := g.cmd.OutOrStdout()
	var said completion
	if body["stream"] == false {
		var whole json.RawMessage
		if err := g.call(ctx, http.MethodPost, g.path, nil, body, &whole); err != nil {
			return "", err
		}
		if err := json.Unmarshal(whole, &said); err != nil {
			return "", err
		}
		if inJSON, _ := wantsJSON(g.cmd); inJSON {
			return said.text(), printJSON(out, whole)
		}
		fmt.Fprintln(out, said.text())
		g.reportEmpty(said.text(), said.finishReason())
		return said.text(), nil
	}
	res, err := g.stream(ctx, g.path, body)
	if err != nil {
		return "", err
	}
	defer res.Body.Close()
	reason := ""
	err = readStream(res.Body, func(data []byte) error {
		var part completion
		if err := json.Unmarshal(data, &part); err != nil {
			return err
		}
		if part.Error != nil {
			return errors.New(part.Error.Message)
		}
		text, reason = text+part.text(), cmp.Or(part.finishReason(), reason)
		_, err := io.WriteString(out, part.text())
		return err
	})
	fmt.Fprintln(out)
	if err == nil {
		g.reportEmpty(text, reason)
	}
	return text, err
}

// reportEmpty prints the finish_reason on standard error if the text of a response is empty.
func (g *generation) reportEmpty(text, reason string) {
	if strings.TrimSpace(text) == "" {
		fmt.Fprintf(g.cmd.ErrOrStderr(), "the model generated no text (finish_reason %s)\n", cmp.Or(reason, "unknown"))
	}
}

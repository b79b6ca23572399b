package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/internal/server"
)

func completeCommand() *cobra.Command {
	var flags completionFlags
	c := &cobra.Command{Use: "complete PROMPT", Short: "Complete a prompt with a deployed model; - reads it from standard input", Args: arguments(1, 1),
		Example: `  anneal complete --model polite "good morning"`,
		RunE: func(c *cobra.Command, args []string) error {
			return flags.complete(c, args[0], "/inference/v1/completions", func(body map[string]any, prompt string) { body["prompt"] = prompt })
		}}
	flags.add(c)
	return c
}

func chatCommand() *cobra.Command {
	var flags completionFlags
	var system string
	c := &cobra.Command{Use: "chat TEXT", Short: "Send a chat message to a deployed model; - reads it from standard input", Args: arguments(1, 1),
		Example: `  anneal chat --model polite --system "You are brief." "good morning"`,
		RunE: func(c *cobra.Command, args []string) error {
			return flags.complete(c, args[0], "/inference/v1/chat/completions", func(body map[string]any, text string) {
				messages := []map[string]any{{"role": "user", "content": text}}
				if system != "" {
					messages = append([]map[string]any{{"role": "system", "content": system}}, messages...)
				}
				body["messages"] = messages
			})
		}}
	flags.add(c)
	c.Flags().StringVar(&system, "system", "", "system prompt")
	return c
}

// completionFlags are the sampling parameters of a completion.
type completionFlags struct {
	model             string
	maxTokens, topK   int
	temperature, topP float64
	seed              int64
	stop              []string
	stream            bool
}

// modelNamesHint is the hint for a model that cannot be used.
const modelNamesHint = "list the names of models with `anneal model names`"

func (q *completionFlags) add(c *cobra.Command) {
	f := c.Flags()
	defer bindFlag(c, "model", "model", modelNamesHint+"; `anneal transcribe` transcribes speech")
	f.StringVarP(&q.model, "model", "m", domain.DefaultBaseModel, "model, deployment as accounts/A/deployments/D, or alias of one")
	f.IntVar(&q.maxTokens, "max-tokens", 128, "maximum number of tokens to generate")
	f.Float64Var(&q.temperature, "temperature", 0, "sampling temperature; 0 is greedy")
	f.Float64Var(&q.topP, "top-p", 1, "nucleus sampling probability")
	f.IntVar(&q.topK, "top-k", 0, "number of tokens to sample from; 0 is all")
	f.Int64Var(&q.seed, "seed", 0, "sampling seed, for reproducible responses")
	f.StringArrayVar(&q.stop, "stop", nil, "`TEXT` to stop at; up to 4")
	f.BoolVar(&q.stream, "stream", true, "print tokens as they are generated")
}

// complete sends a text, which put adds to the body, and prints the response.
func (q *completionFlags) complete(c *cobra.Command, text, path string, put func(body map[string]any, text string)) error {
	client, err := newClient(c)
	if err != nil {
		return err
	}
	inJSON, err := wantsJSON(c)
	if err != nil {
		return err
	}
	if text == "-" {
		read, err := readInput(c, text)
		if err != nil {
			return err
		}
		text = strings.TrimRight(string(read), "\r\n")
	}
	model, err := resolveModel(c, client, q.model)
	if err != nil {
		return err
	}
	body := map[string]any{"model": model, "max_tokens": q.maxTokens, "temperature": q.temperature, "top_p": q.topP, "stream": q.stream && !inJSON}
	put(body, text)
	if q.topK > 0 {
		body["top_k"] = q.topK
	}
	if c.Flags().Changed("seed") {
		body["seed"] = q.seed
	}
	if len(q.stop) > 0 {
		body["stop"] = q.stop
	}
	return printCompletion(c, client, path, body)
}

// resolveModel returns the resource name of a model of the account, if it has one of that ID, or else
// an alias of a deployment. It prints the deployment of an alias that was given.
func resolveModel(cmd *cobra.Command, c *client, name string) (string, error) {
	if strings.ContainsAny(name, "/#") {
		return name, nil
	}
	var list struct {
		Data []struct{ ID, Deployment string }
	}
	if err := c.call(cmd.Context(), http.MethodGet, "/inference/v1/models", nil, nil, &list); err != nil {
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
	if bound == "" && !slices.Contains(server.SpeechAliases, name) { // the server explains why they are not bound
		return own, nil
	}
	if bound != "" && cmd.Flags().Changed("model") {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is %s\n", name, bound)
	}
	return name, nil
}

// completion is a response or a chunk of a streamed one: a completion has text, a chat completion a
// message, and a chunk of that a delta.
type completion struct {
	Choices []struct {
		Text    string `json:"text"`
		Message struct {
			Content string `json:"content"`
		} `json:"message"`
		Delta struct {
			Content string `json:"content"`
		} `json:"delta"`
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

// printCompletion requests a completion and prints it.
func printCompletion(cmd *cobra.Command, c *client, path string, body map[string]any) error {
	out := cmd.OutOrStdout()
	if body["stream"] == false {
		var whole json.RawMessage
		if err := c.call(cmd.Context(), http.MethodPost, path, nil, body, &whole); err != nil {
			return err
		}
		if inJSON, _ := wantsJSON(cmd); inJSON {
			return printJSON(out, whole)
		}
		var said completion
		if err := json.Unmarshal(whole, &said); err != nil {
			return err
		}
		fmt.Fprintln(out, said.text())
		return nil
	}
	res, err := c.stream(cmd.Context(), path, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	err = readStream(res.Body, func(data []byte) error { return printChunk(out, data) })
	fmt.Fprintln(out)
	return err
}

func printChunk(out io.Writer, data []byte) error {
	var part completion
	if err := json.Unmarshal(data, &part); err != nil {
		return err
	}
	if part.Error != nil {
		return errors.New(part.Error.Message)
	}
	_, err := io.WriteString(out, part.text())
	return err
}

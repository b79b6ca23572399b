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
	var asking question
	c := &cobra.Command{Use: "complete PROMPT", Short: "Ask a deployed model to go on with a text; - reads it from standard input", Args: arguments(1, 1),
		Example: `  anneal complete --model polite "good morning"`,
		RunE: func(c *cobra.Command, args []string) error {
			return asking.ask(c, args[0], "/inference/v1/completions", func(body map[string]any, prompt string) { body["prompt"] = prompt })
		}}
	asking.add(c)
	return c
}

func chatCommand() *cobra.Command {
	var asking question
	var system string
	c := &cobra.Command{Use: "chat TEXT", Short: "Say something to a deployed model; - reads it from standard input", Args: arguments(1, 1),
		Example: `  anneal chat --model polite --system "You are brief." "good morning"`,
		RunE: func(c *cobra.Command, args []string) error {
			return asking.ask(c, args[0], "/inference/v1/chat/completions", func(body map[string]any, text string) {
				messages := []map[string]any{{"role": "user", "content": text}}
				if system != "" {
					messages = append([]map[string]any{{"role": "system", "content": system}}, messages...)
				}
				body["messages"] = messages
			})
		}}
	asking.add(c)
	c.Flags().StringVar(&system, "system", "", "what the model is told first")
	return c
}

// A question is what a model is asked with, beside the text.
type question struct {
	model             string
	maxTokens, topK   int
	temperature, topP float64
	seed              int64
	stop              []string
	stream            bool
}

// modelNamesHint is the hint for a model that cannot be used.
const modelNamesHint = "list the names of models with `anneal model names`"

func (q *question) add(c *cobra.Command) {
	f := c.Flags()
	defer bindFlag(c, "model", "model", modelNamesHint+"; `anneal transcribe` transcribes speech")
	f.StringVarP(&q.model, "model", "m", domain.DefaultBaseModel, "model, deployment as accounts/A/deployments/D, or a name that the operator gave to one")
	f.IntVar(&q.maxTokens, "max-tokens", 128, "most tokens to generate")
	f.Float64Var(&q.temperature, "temperature", 0, "0 is always the likeliest token")
	f.Float64Var(&q.topP, "top-p", 1, "share of probability to choose from")
	f.IntVar(&q.topK, "top-k", 0, "number of tokens to choose from; 0 is all")
	f.Int64Var(&q.seed, "seed", 0, "same seed, same answer")
	f.StringArrayVar(&q.stop, "stop", nil, "`TEXT` to stop at; up to 4 times")
	f.BoolVar(&q.stream, "stream", true, "print as it comes")
}

// ask sends a text, which put adds to the body, and prints the answer.
func (q *question) ask(c *cobra.Command, text, path string, put func(body map[string]any, text string)) error {
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
	model, err := client.askable(c, q.model)
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
	return client.answer(c, path, body)
}

// askable is what a name means where models are asked: a model of the account,
// where it has one of that name, else a name that the operator gave to a
// deployment. Of such a name that was typed it tells the deployment.
func (c *client) askable(cmd *cobra.Command, name string) (string, error) {
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
	if bound == "" && !slices.Contains(server.SpeechAliases, name) { // of those the server knows best why nobody has them
		return own, nil
	}
	if bound != "" && cmd.Flags().Changed("model") {
		fmt.Fprintf(cmd.ErrOrStderr(), "%s is %s\n", name, bound)
	}
	return name, nil
}

// An answered is an answer, or a part of one that is streamed: a completion
// has text, a chat's answer a message, and a part of that a delta.
type answered struct {
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

// text is what the model says in it.
func (a answered) text() (text string) {
	for _, choice := range a.Choices {
		text += choice.Text + choice.Message.Content + choice.Delta.Content
	}
	return text
}

// answer asks a model and prints what it says.
func (c *client) answer(cmd *cobra.Command, path string, body map[string]any) error {
	out := cmd.OutOrStdout()
	if body["stream"] == false {
		var whole json.RawMessage
		if err := c.call(cmd.Context(), http.MethodPost, path, nil, body, &whole); err != nil {
			return err
		}
		if inJSON, _ := wantsJSON(cmd); inJSON {
			return printJSON(out, whole)
		}
		var said answered
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
	err = readStream(res.Body, func(data []byte) error { return printPart(out, data) })
	fmt.Fprintln(out)
	return err
}

func printPart(out io.Writer, data []byte) error {
	var part answered
	if err := json.Unmarshal(data, &part); err != nil {
		return err
	}
	if part.Error != nil {
		return errors.New(part.Error.Message)
	}
	_, err := io.WriteString(out, part.text())
	return err
}

package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

func chatCommand() *cobra.Command {
	var flags completionFlags
	var system string
	var images []string
	c := &cobra.Command{Use: "chat [TEXT]",
		Short: "Send a chat message to a model, or have a conversation; use - as TEXT to read it from standard input",
		Args:  arguments(0, 1),
		Example: `  anneal chat --model polite --system "You are brief." "good morning"` + "\n  anneal chat --model polite" +
			"\n  anneal chat --model seer --image lamp.jpg \"what is broken?\"",
		Long: `Without TEXT, every line of the terminal or of standard input is a message of one conversation, whose
earlier messages are sent again with each request. Ctrl-C stops a response; /clear begins a new conversation, and
/exit or Ctrl-D leaves. Images belong to the first message of a conversation.`,
		RunE: func(c *cobra.Command, args []string) error {
			parts, err := readImages(images)
			if err != nil {
				return err
			}
			client, err := newClient(c)
			if err != nil {
				return err
			}
			talk := &conversation{generation: generation{client: client, cmd: c, path: "/inference/v1/chat/completions"},
				flags: &flags, images: parts}
			if system != "" {
				talk.system = []any{map[string]any{"role": "system", "content": system}}
			}
			if len(args) == 0 {
				return talk.run(c.InOrStdin())
			}
			text, err := readText(c, args[0])
			if err != nil {
				return err
			}
			return talk.send(c.Context(), text)
		}}
	flags.add(c)
	c.Flags().StringVar(&system, "system", "", "system prompt")
	c.Flags().StringArrayVar(&images, "image", nil, "`FILE|URL` of an image of the message, for models that read images; "+
		"repeatable")
	return c
}

// A conversation is a chat of `anneal chat` with a model.
type conversation struct {
	generation
	flags    *completionFlags
	system   []any          // system message; nil if there is none
	images   []any          // image parts of the first message of the user
	messages []any          // messages of the user and of the model so far
	begun    bool           // the user has entered a message or a command such as /clear
	signals  chan os.Signal // receives interrupts of the process; nil before run
}

// send sends text as a message, together with the earlier messages of the conversation, and prints
// the response. It adds the message and the response to t.messages, unless the request fails.
func (t *conversation) send(ctx context.Context, text string) error {
	body, err := t.flags.body(t.cmd)
	if err != nil {
		return err
	}
	message := map[string]any{"role": "user", "content": text}
	if len(t.messages) == 0 && len(t.images) > 0 {
		message["content"] = slices.Concat([]any{map[string]any{"type": "text", "text": text}}, t.images)
	}
	asked := slices.Concat(t.messages, []any{message})
	body["messages"] = slices.Concat(t.system, asked)
	response, err := t.generation.run(ctx, body)
	if err != nil {
		return err
	}
	t.messages = append(asked, map[string]any{"role": "assistant", "content": response})
	return nil
}

// Texts that the conversation prints on a terminal.
const (
	chatPrompt   = "> "
	chatGreeting = "Type a message; /clear begins a new conversation, /exit leaves, Ctrl-C stops a response."
)

// run reads messages line by line until the input ends. On a terminal it prints an error of a
// message and continues; otherwise it returns the error.
func (t *conversation) run(in io.Reader) error {
	file, ok := in.(*os.File)
	interactive := ok && isTerminal(file)
	t.signals = make(chan os.Signal, 1)
	signal.Notify(t.signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(t.signals)
	if interactive {
		fmt.Fprintln(t.cmd.ErrOrStderr(), chatGreeting)
	}
	return t.converse(linesOf(in), interactive)
}

// A line is a line of the input, or the error that ended the input.
type line struct {
	text string
	err  error
}

// linesOf returns a channel with the lines of a reader, which is closed at the end of the input.
func linesOf(in io.Reader) <-chan line {
	lines := make(chan line)
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(in)
		scanner.Buffer(nil, maxInput)
		for scanner.Scan() {
			lines <- line{text: scanner.Text()}
		}
		if err := scanner.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("a line of standard input exceeds the limit of %d bytes", maxInput)
			}
			lines <- line{err: err}
		}
	}()
	return lines
}

// converse sends each line as a message. An interrupt stops the response in progress. At the prompt
// of a terminal, two interrupts in a row end the conversation.
func (t *conversation) converse(lines <-chan line, interactive bool) error {
	leaving := false // the last input at the prompt was an interrupt
	for {
		if interactive {
			fmt.Fprint(t.cmd.ErrOrStderr(), chatPrompt)
		}
		select {
		case got := <-t.signals:
			fmt.Fprintln(t.cmd.ErrOrStderr())
			if leaving || !interactive || got != os.Interrupt {
				return context.Canceled
			}
			leaving = true
			fmt.Fprintln(t.cmd.ErrOrStderr(), "Type /exit or press Ctrl-D or Ctrl-C to leave.")
		case next, more := <-lines:
			leaving = false
			if !more && !t.begun && !interactive {
				return missingArguments(t.cmd, argumentNames(t.cmd))
			}
			if !more || next.err != nil {
				return next.err
			}
			leave, err := t.respond(next.text, interactive)
			if leave || err != nil && !interactive {
				return err
			}
			if err != nil {
				fmt.Fprintf(t.cmd.ErrOrStderr(), "anneal: %s\n", describe(t.cmd, err))
			}
		}
	}
}

// respond executes a line that is a command such as /clear, or sends it as a message. leave reports
// that the conversation has ended.
func (t *conversation) respond(text string, interactive bool) (leave bool, err error) {
	if text = strings.TrimSpace(text); text == "" {
		return false, nil
	}
	t.begun = true
	switch {
	case text == "/exit", text == "/quit", text == "/bye":
		return true, nil
	case text == "/clear":
		t.messages = nil
		return false, nil
	case text == "/help":
		fmt.Fprintln(t.cmd.ErrOrStderr(), chatGreeting)
		return false, nil
	case strings.HasPrefix(text, "/") && !strings.ContainsAny(text[1:], "/ "):
		return false, fmt.Errorf("unknown command %s: the commands are /clear, /exit and /help", text)
	}
	// An interrupt also cancels the command's context, but must only cancel this request.
	ctx, stop := context.WithCancel(context.WithoutCancel(t.cmd.Context()))
	defer stop()
	sent := make(chan error, 1)
	go func() { sent <- t.send(ctx, text) }()
	select {
	case err := <-sent:
		return false, err
	case got := <-t.signals:
		stop()
		<-sent
		if !interactive || got != os.Interrupt {
			return true, context.Canceled
		}
		fmt.Fprintln(t.cmd.ErrOrStderr(), "stopped")
		return false, nil
	}
}

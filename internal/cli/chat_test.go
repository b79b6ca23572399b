package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// chatServer responds to chats with the number of messages, and counts the requests of each path.
type chatServer struct {
	bodies   []map[string]any
	requests atomic.Int32
}

func (s *chatServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.requests.Add(1)
	var body map[string]any
	_ = json.NewDecoder(r.Body).Decode(&body)
	s.bodies = append(s.bodies, body)
	messages, _ := body["messages"].([]any)
	fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"seen %d\"}}]}\n\n", len(messages))
	fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n")
}

// converse runs `anneal chat` with an input, and returns what it prints.
func converse(t *testing.T, handler http.HandlerFunc, input string, args ...string) (out, output string, err error) {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "input")
	require.NoError(t, err)
	_, err = file.WriteString(input)
	require.NoError(t, err)
	_, err = file.Seek(0, io.SeekStart)
	require.NoError(t, err)
	stdin := os.Stdin
	os.Stdin = file
	defer func() { os.Stdin = stdin }()
	return runOutput(t, handler, append([]string{"chat"}, args...)...)
}

// TestAConversationKeepsItsMessages checks that every line is sent with the messages before it.
func TestAConversationKeepsItsMessages(t *testing.T) {
	s := &chatServer{}
	out, output, err := converse(t, s.ServeHTTP, "one\n\ntwo\n/clear\nthree\n/exit\nfour\n", "--system", "brief")
	require.NoError(t, err)
	require.Equal(t, "seen 2\nseen 4\nseen 2\n", out)
	require.Empty(t, output, "a pipe sees neither prompts nor greetings")
	require.Len(t, s.bodies, 3)
	var second []string
	for _, message := range s.bodies[1]["messages"].([]any) {
		second = append(second, fmt.Sprint(message.(map[string]any)["role"], ":", message.(map[string]any)["content"]))
	}
	require.Equal(t, []string{"system:brief", "user:one", "assistant:seen 2", "user:two"}, second)

	_, _, err = converse(t, s.ServeHTTP, "/nonsense\n")
	require.EqualError(t, err, "unknown command /nonsense: the commands are /clear, /exit and /help")
	for _, blank := range []string{"", "\n \n"} {
		out, _, err = converse(t, s.ServeHTTP, blank)
		require.ErrorContains(t, err, "TEXT is missing; usage: anneal chat [TEXT] [flags]; for example: anneal chat --model ")
		require.Empty(t, out)
	}
}

// TestAConversationOfAPipeEndsWithItsFirstError checks that an error ends a conversation whose
// input is not a terminal.
func TestAConversationOfAPipeEndsWithItsFirstError(t *testing.T) {
	s := &chatServer{}
	fail := func(w http.ResponseWriter, r *http.Request) {
		if s.requests.Load() == 1 {
			s.requests.Add(1)
			http.Error(w, `{"error":{"message":"too long","code":"CONTEXT"}}`, http.StatusBadRequest)
			return
		}
		s.ServeHTTP(w, r)
	}
	out, _, err := converse(t, fail, "one\ntwo\nthree\n")
	require.EqualError(t, err, "too long")
	require.Equal(t, "seen 1\n", out)
}

// TestAnInterruptStopsTheResponse checks that an interrupt during a response stops only the
// response, and that two interrupts at the prompt leave.
func TestAnInterruptStopsTheResponse(t *testing.T) {
	began, held := make(chan struct{}), make(chan struct{})
	server := func(w http.ResponseWriter, r *http.Request) {
		var body struct{ Messages []struct{ Content string } }
		_ = json.NewDecoder(r.Body).Decode(&body)
		if last := body.Messages[len(body.Messages)-1].Content; last == "long" {
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"delta\":{\"content\":\"endless\"}}]}\n\n")
			_ = http.NewResponseController(w).Flush()
			close(began)
			<-r.Context().Done() // the client has closed the connection
			close(held)
			return
		}
		fmt.Fprintf(w, "data: {\"choices\":[{\"delta\":{\"content\":\"seen %d\"}}]}\n\ndata: [DONE]\n\n", len(body.Messages))
	}
	lines := make(chan line)
	var shown strings.Builder
	talk, ended := newConversation(t, server, &shown), make(chan error, 1)
	go func() { ended <- talk.converse(lines, true) }()
	lines <- line{text: "short"}
	lines <- line{text: "long"}
	<-began
	talk.signals <- os.Interrupt
	<-held
	lines <- line{text: "again"} // the stopped message is not part of the conversation
	lines <- line{}              // is received at the prompt after the response
	talk.signals <- os.Interrupt
	talk.signals <- os.Interrupt
	require.Error(t, <-ended)
	require.Contains(t, shown.String(), "seen 1\n")
	require.Contains(t, shown.String(), "stopped\n")
	require.Contains(t, shown.String(), "seen 3\n")
	require.Contains(t, shown.String(), "Type /exit")
}

// TestOneRequestForOneChat checks that a chat with a model of the account sends one request, and
// that only an alias needs further ones.
func TestOneRequestForOneChat(t *testing.T) {
	s := &chatServer{}
	_, _, err := runOutput(t, s.ServeHTTP, "chat", "-m", "mine", "hello")
	require.NoError(t, err)
	require.EqualValues(t, 1, s.requests.Load())
	require.Equal(t, "accounts/a/models/mine", s.bodies[0]["model"])

	alias := &chatServer{}
	out, output, err := runOutput(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/inference/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"clever","deployment":"accounts/a/deployments/d"}]}`)
		case alias.requests.Add(1) == 1:
			http.Error(w, `{"error":{"message":"there is no model","code":"MODEL_NOT_FOUND"}}`, http.StatusNotFound)
		default:
			alias.ServeHTTP(w, r)
		}
	}, "chat", "-m", "clever", "hello")
	require.NoError(t, err)
	require.Equal(t, "seen 1\n", out)
	require.Equal(t, "clever is an alias of the deployment accounts/a/deployments/d\n", output)
	require.Equal(t, "clever", alias.bodies[0]["model"])
}

// TestEmptyResponseNamesItsReason checks that a response without text is reported, with the reason.
func TestEmptyResponseNamesItsReason(t *testing.T) {
	for _, stream := range []string{"true", "false"} {
		out, output, err := runOutput(t, func(w http.ResponseWriter, _ *http.Request) {
			chunk := `{"choices":[{"text":"","finish_reason":"stop"}]}`
			if stream == "true" {
				chunk = "data: " + chunk + "\n\ndata: [DONE]\n\n"
			}
			_, _ = io.WriteString(w, chunk)
		}, "complete", "-m", "a/b", "--stream="+stream, "x")
		require.NoError(t, err)
		require.Equal(t, "\n", out)
		require.Equal(t, "the model generated no text (finish_reason stop)\n", output)
	}
}

func newConversation(t *testing.T, handler http.HandlerFunc, shown io.Writer) *conversation {
	t.Helper()
	talk := &conversation{flags: &completionFlags{model: "a/b", maxTokens: 8, stream: true}}
	talk.client, talk.cmd = clientOfHandler(t, handler)
	talk.cmd.SetOut(shown)
	talk.cmd.SetErr(shown)
	talk.path, talk.signals = "/inference/v1/chat/completions", make(chan os.Signal)
	return talk
}

package main_test

import (
	"bytes"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded"
)

// The prompt that all clients ask with, as text and as a chat.
const clientsPrompt = "Packing code for 15 pink chairs, customer Rosa"

// Clients that were written for other servers are told nothing but an address,
// a key and a model's name, and say what plain HTTP says.
func TestUnmodifiedClients(t *testing.T) {
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	user := s.user()
	user.must(http.MethodPost, "/deployments?deploymentId=base", object{"baseModel": baseModel, "minReplicaCount": 1})
	user.until("/deployments/base", "state", "READY")
	plain := user.asksPlainly()

	t.Run("openai for Go", func(t *testing.T) {
		program := goClient(t, ".")
		said := s.drive(t, ".", program)
		plain.agrees(t, said)
		require.EqualValues(t, plain.tokens, at(said, "completion.tokens"))
		require.EqualValues(t, plain.tokens, at(said, "stream.tokens"))
		require.EqualValues(t, plain.chatTokens, at(said, "chatStream.tokens"))
		require.EqualValues(t, http.StatusBadRequest, at(said, "refusal.status"))
		require.Equal(t, "temperature", at(said, "refusal.param"))
		require.Contains(t, said["models"], baseModel)
	})
	t.Run("openai for JavaScript", func(t *testing.T) {
		said := s.drive(t, nodeFolder(t), "node", "openai.mjs")
		plain.agrees(t, said)
		require.EqualValues(t, plain.tokens, at(said, "completion.usage.total_tokens"))
		require.EqualValues(t, plain.tokens, at(said, "stream.usage.total_tokens"))
		require.EqualValues(t, plain.chatTokens, at(said, "chatStream.usage.total_tokens"))
		require.Greater(t, at(said, "completion.tokens"), 1.0)
		require.Equal(t, "BadRequestError", at(said, "refusal.kind"))
		require.Equal(t, "temperature", at(said, "refusal.param"))
		require.Equal(t, "NotFoundError", at(said, "missing.kind"))
		require.Contains(t, said["models"], baseModel)
	})
	t.Run("ai with its compatible provider", func(t *testing.T) {
		said := s.drive(t, nodeFolder(t), "node", "ai.mjs")
		require.Nil(t, at(said, "completion.error"))
		require.Equal(t, plain.chat, at(said, "chat.text"))
		require.Equal(t, plain.chat, at(said, "chatStream.text"))
		require.Equal(t, plain.chatFinish, at(said, "chatStream.finish"))
		require.EqualValues(t, plain.chatTokens, at(said, "chatStream.usage.totalTokens"))
		require.EqualValues(t, http.StatusBadRequest, at(said, "refusal.status"))
		require.Contains(t, at(said, "refusal.message"), "temperature")
	})
	t.Run("openai for JavaScript, answers of a form", func(t *testing.T) {
		said := s.drive(t, nodeFolder(t), "node", "openai-structured.mjs", s.tooled(user))
		isOrder(t, at(said, "parsed"), true)
		require.Equal(t, "stop", said["finish"])
		require.Equal(t, at(said, "parsed"), at(said, "streamed"))
		require.Equal(t, "place", at(said, "called.name"))
		require.Equal(t, "tool_calls", said["calledFinish"])
		isOrder(t, at(said, "called.parsed_arguments"), true)
		require.Equal(t, at(said, "called.arguments"), at(said, "calledPiecewise.arguments"))
		require.Equal(t, "LengthFinishReasonError", said["cut"])
	})
	t.Run("ai with its compatible provider, answers of a form", func(t *testing.T) {
		said := s.drive(t, nodeFolder(t), "node", "ai-structured.mjs", s.tooled(user))
		isOrder(t, at(said, "made"), false)
		require.Equal(t, "stop", said["finish"])
		require.Equal(t, at(said, "made"), at(said, "streamed"))
		require.Greater(t, said["pieces"], 1.0)
		require.IsType(t, []any{}, said["list"], "%v", said["list"])
		require.Contains(t, []any{"chairs", "tables"}, said["choice"])
		require.Len(t, at(said, "named.stock"), 2)
		require.Equal(t, "tool-calls", said["calledFinish"])
		calls, ok := said["called"].([]any)
		require.True(t, ok && len(calls) > 0, "%v", said["called"])
		require.Equal(t, "place", at(calls[0].(object), "toolName"))
		require.Nil(t, at(calls[0].(object), "invalid"))
		isOrder(t, at(calls[0].(object), "input"), false)
		require.Equal(t, calls, said["calledPiecewise"])
	})
}

// tooled is a model like the shipped one with a chat template that shows tools
// and says how they are called, deployed.
func (s *plane) tooled(user caller) string {
	s.t.Helper()
	const name = "accounts/default/models/tooled"
	if statusOf(user, "/models/tooled") == http.StatusOK {
		return name
	}
	dir := s.t.TempDir()
	require.NoError(s.t, embedded.WriteBase(dir))
	file := filepath.Join(dir, "tokenizer_config.json")
	config := object{}
	data, err := os.ReadFile(file)
	require.NoError(s.t, err)
	require.NoError(s.t, json.Unmarshal(data, &config))
	config["chat_template"] = "{{ bos_token }}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% for message in messages %}{{ message.content }}" +
		"{% for call in message.tool_calls %}\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ call.function.arguments | tojson }}}\n</tool_call>{% endfor %}" +
		"{% if message.role == 'assistant' %}<|end|>{% else %}<|assistant|>{% endif %}{% endfor %}"
	data, err = json.Marshal(config)
	require.NoError(s.t, err)
	require.NoError(s.t, os.WriteFile(file, data, 0o600))
	s.run("model", "create", "tooled", "--dir", dir).ok(s.t)
	user.must(http.MethodPost, "/deployments?deploymentId=tooled", object{"baseModel": name, "minReplicaCount": 1})
	user.until("/deployments/tooled", "state", "READY")
	return name
}

// isOrder demands what the client's schema says of an order, which the client
// has checked too.
func isOrder(t *testing.T, said any, whole bool) {
	t.Helper()
	order, ok := said.(object)
	require.True(t, ok, "%v", said)
	require.Contains(t, []any{"person", "company"}, at(order, "customer.kind"))
	require.Regexp(t, `^[A-Z]{2}-\d{2}$`, order["code"])
	require.Regexp(t, `^\d{4}-\d{2}-\d{2}$`, order["when"])
	require.Contains(t, []any{"post", "van"}, at(order, "way.by"))
	require.NotEmpty(t, order["lines"])
	if _, given := order["note"]; whole {
		require.True(t, given, "a field that may be null is given")
	}
}

// plainly is what the server answers to plain HTTP.
type plainly struct {
	text, finish, chat, chatFinish string
	tokens, chatTokens             any
}

func (c caller) asksPlainly() (p plainly) {
	c.t.Helper()
	settings := object{"model": baseModel, "max_tokens": 24, "temperature": 0}
	settings["prompt"] = clientsPrompt
	answer := c.must(http.MethodPost, "//inference/v1/completions", settings)
	p.text, p.tokens = textOf(c.t, answer), at(answer, "usage.total_tokens")
	p.finish = answer["choices"].([]any)[0].(object)["finish_reason"].(string)

	delete(settings, "prompt")
	settings["messages"] = []object{{"role": "user", "content": clientsPrompt}}
	answer = c.must(http.MethodPost, "//inference/v1/chat/completions", settings)
	choice := answer["choices"].([]any)[0].(object)
	p.chat, _ = at(choice, "message.content").(string)
	p.chatFinish, p.chatTokens = choice["finish_reason"].(string), at(answer, "usage.total_tokens")
	require.NotEmpty(c.t, p.text)
	require.NotEmpty(c.t, p.chat)
	return p
}

// agrees demands that a client understood the same.
func (p plainly) agrees(t *testing.T, said object) {
	t.Helper()
	for _, way := range []string{"completion", "stream"} {
		require.Equal(t, p.text, at(said, way+".text"), way)
		require.Equal(t, p.finish, at(said, way+".finish"), way)
	}
	for _, way := range []string{"chat", "chatStream"} {
		require.Equal(t, p.chat, at(said, way+".text"), way)
		require.Equal(t, p.chatFinish, at(said, way+".finish"), way)
	}
	require.Greater(t, at(said, "stream.chunks"), 1.0, "a stream comes in pieces")
	require.Greater(t, at(said, "chatStream.chunks"), 1.0, "a stream comes in pieces")
}

// overheard is the address of a proxy before the server that holds what passes
// against its document.
func (s *plane) overheard(t *testing.T) string {
	t.Helper()
	server, err := url.Parse(s.context.Address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.Transport, proxy.FlushInterval = s.watched(), -1
	between := httptest.NewServer(proxy)
	t.Cleanup(between.Close)
	return between.URL
}

// drive runs a client's program against the server and reads what it prints.
func (s *plane) drive(t *testing.T, dir, program string, args ...string) object {
	t.Helper()
	return s.driveModel(t, baseModel, dir, program, args...)
}

func (s *plane) driveModel(t *testing.T, model, dir, program string, args ...string) (said object) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var out, complaints bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &complaints
	cmd.Env = environment(t.TempDir(), "BASE_URL="+s.overheard(t)+"/inference/v1", "API_KEY="+s.context.APIKey, "MODEL="+model, "PROMPT="+clientsPrompt)
	require.NoError(t, cmd.Run(), "%s%s", out.String(), complaints.String())
	require.NoError(t, json.Unmarshal(out.Bytes(), &said), "%s", out.String())
	return said
}

func clientsFolder(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("testdata", "clients", name))
	require.NoError(t, err)
	return dir
}

// nodeFolder is where the clients for JavaScript are installed.
func nodeFolder(t *testing.T) string {
	t.Helper()
	dir := clientsFolder(t, "node")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "openai")); err != nil {
		t.Skip("the clients for JavaScript are not installed: run make clients, which needs npm")
	}
	return dir
}

// goClient builds one of the programs that use openai-go, which a short run
// does not wait for.
func goClient(t *testing.T, folder string) (program string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it is fetched and built first")
	}
	program = filepath.Join(t.TempDir(), "client")
	build := exec.Command("go", "build", "-o", program, folder)
	build.Dir = clientsFolder(t, "openaigo")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

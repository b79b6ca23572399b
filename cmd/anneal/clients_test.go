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

	"anneal/api/described"
	"anneal/engines/embedded"
	"anneal/internal/testutil"
)

// clientsPrompt is the prompt of all clients, as text and as a chat.
const clientsPrompt = "Packing code for 15 pink chairs, customer Rosa"

// TestUnmodifiedClients checks that clients that were written for other servers, and get only an
// address, a key and a model's name, receive the same responses as plain HTTP requests.
func TestUnmodifiedClients(t *testing.T) {
	t.Parallel()
	s := serve(t, filepath.Join(t.TempDir(), "data"))
	user := s.user()
	user.deploy("base", object{"baseModel": baseModel})
	plain := user.plainResponses()

	t.Run("openai for Go", func(t *testing.T) {
		program := goClient(t, ".")
		for _, base := range basePaths {
			output := s.driveAt(t, base, baseModel, ".", program)
			plain.agrees(t, output)
			plain.agreesOnResponses(t, output, "response", "responseStream")
			require.Equal(t, baseModel, output["model"])
			vectors := at(output, "embedding.vectors").([]any)
			require.Len(t, vectors, 2)
			require.NotEqual(t, vectors[0], vectors[1])
		}
		output := s.drive(t, ".", program)
		require.EqualValues(t, plain.tokens, at(output, "completion.tokens"))
		require.EqualValues(t, plain.tokens, at(output, "stream.tokens"))
		require.EqualValues(t, plain.chatTokens, at(output, "chatStream.tokens"))
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Equal(t, "temperature", at(output, "refusal.param"))
		require.Contains(t, output["models"], baseModel)
	})
	t.Run("openai for JavaScript", func(t *testing.T) {
		output := s.driveAt(t, "/v1", "base", nodeClientsDir(t), "node", "openai.mjs")
		plain.agrees(t, output)
		output = s.drive(t, nodeClientsDir(t), "node", "openai.mjs")
		plain.agrees(t, output)
		require.EqualValues(t, plain.tokens, at(output, "completion.usage.total_tokens"))
		require.EqualValues(t, plain.tokens, at(output, "stream.usage.total_tokens"))
		require.EqualValues(t, plain.chatTokens, at(output, "chatStream.usage.total_tokens"))
		require.Greater(t, at(output, "completion.tokens"), 1.0)
		require.Equal(t, "BadRequestError", at(output, "refusal.kind"))
		require.Equal(t, "temperature", at(output, "refusal.param"))
		require.Equal(t, "NotFoundError", at(output, "missing.kind"))
		require.Contains(t, output["models"], baseModel)
	})
	t.Run("ai with its compatible provider", func(t *testing.T) {
		output := s.drive(t, nodeClientsDir(t), "node", "ai.mjs")
		require.Nil(t, at(output, "completion.error"))
		require.Equal(t, plain.chat, at(output, "chat.text"))
		require.Equal(t, plain.chat, at(output, "chatStream.text"))
		require.Equal(t, plain.chatFinish, at(output, "chatStream.finish"))
		require.EqualValues(t, plain.chatTokens, at(output, "chatStream.usage.totalTokens"))
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Contains(t, at(output, "refusal.message"), "temperature")
	})
	t.Run("openai for JavaScript, responses and embeddings", func(t *testing.T) {
		for _, base := range basePaths {
			output := s.driveAt(t, base, "base", nodeClientsDir(t), "node", "openai-responses.mjs", s.deployToolModel(user))
			plain.agreesOnResponses(t, output, "plain", "stream")
			require.Equal(t, false, at(output, "plain.store"))
			require.Equal(t, at(output, "stream.text"), at(output, "stream.deltas"))
			require.Equal(t, []any{"response.created", "response.in_progress", "response.output_item.added",
				"response.content_part.added", "response.output_text.delta", "response.output_text.done",
				"response.content_part.done", "response.output_item.done", "response." + at(output, "plain.status").(string)},
				at(output, "stream.events"))
			require.EqualValues(t, plain.chatTokens, at(output, "plain.usage.total_tokens"))
			require.EqualValues(t, plain.chatTokens, at(output, "stream.usage.total_tokens"))
			isOrder(t, output["parsed"], true)
			require.Equal(t, "place", at(output, "called.name"))
			isOrder(t, at(output, "called.arguments"), true)
			require.Contains(t, []any{"completed", "incomplete"}, output["again"])
			require.Contains(t, []any{"completed", "incomplete"}, output["answered"])
			vectors := output["embedding"].(object)
			require.Greater(t, len(vectors["first"].([]any)), 8)
			require.Equal(t, vectors["first"], vectors["same"])
			require.NotEqual(t, vectors["first"], vectors["other"])
			for i, v := range vectors["floats"].([]any) { // Base64 has the same numbers of 32 bits
				require.InDelta(t, v, vectors["first"].([]any)[i], 1e-7)
			}
			require.Len(t, vectors["short"], 8)
			require.Equal(t, "base", at(output, "model.id"))
			require.Contains(t, output["names"], baseModel)
			require.Equal(t, "BadRequestError", at(output, "stored.kind"))
			require.Equal(t, "store", at(output, "stored.param"))
			require.Equal(t, "previous_response_id", at(output, "stateful.param"))
		}
	})
	t.Run("ai with its provider for OpenAI", func(t *testing.T) {
		output := s.driveAt(t, "/v1", "base", nodeClientsDir(t), "node", "ai-openai.mjs", s.deployToolModel(user))
		require.Equal(t, plain.chat, at(output, "plain.text"))
		require.Equal(t, plain.chat, at(output, "stream.text"))
		require.Equal(t, plain.chatFinish, at(output, "plain.finish"))
		require.Equal(t, plain.chatFinish, at(output, "stream.finish"))
		require.EqualValues(t, plain.chatTokens, at(output, "plain.usage.totalTokens"))
		require.EqualValues(t, plain.chatTokens, at(output, "stream.usage.totalTokens"))
		require.Contains(t, []any{"chair", "table"}, at(output, "made.item"))
		require.GreaterOrEqual(t, output["executed"], 1.0)
		require.EqualValues(t, 2, output["steps"])
		require.Equal(t, "place", at(output, "call.toolName"))
		require.Len(t, output["embeddings"], 2)
		require.Greater(t, output["tokens"], 2.0)
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Contains(t, at(output, "refusal.message"), "temperature")
	})
	t.Run("ai with its provider for the hosted service", func(t *testing.T) {
		output := s.drive(t, nodeClientsDir(t), "node", "ai-fireworks.mjs")
		require.Equal(t, plain.chat, at(output, "chat.text"))
		require.Equal(t, plain.chat, at(output, "chatStream.text"))
		require.Equal(t, plain.chatFinish, at(output, "chat.finish"))
		require.Equal(t, plain.chatFinish, at(output, "chatStream.finish"))
		require.EqualValues(t, plain.chatTokens, at(output, "chat.usage.totalTokens"))
		require.Equal(t, plain.finish, at(output, "completion.finish"))
		require.Contains(t, []any{"chair", "table"}, at(output, "made.item"))
		require.Len(t, output["embeddings"], 2)
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Contains(t, at(output, "refusal.message"), "temperature")
	})
	t.Run("LangChain", func(t *testing.T) {
		output := s.driveAt(t, "/v1", "base", nodeClientsDir(t), "node", "langchain.mjs", s.deployToolModel(user))
		for _, way := range []string{"openai", "fireworks"} {
			require.Equal(t, plain.chat, at(output, way+".text"), way)
			require.Equal(t, plain.chat, at(output, way+".stream.text"), way)
			require.Equal(t, plain.chatFinish, at(output, way+".finish"), way)
			require.Equal(t, plain.chatFinish, at(output, way+".stream.finish"), way)
			require.Greater(t, at(output, way+".stream.chunks"), 1.0, way)
			require.EqualValues(t, plain.chatTokens, at(output, way+".usage.total_tokens"), way)
			require.Equal(t, "place", at(output, way+".call.name"), way)
			require.Contains(t, []any{"chair", "table"}, at(output, way+".call.args.item"), way)
		}
		require.Equal(t, plain.chat, at(output, "responses.text"))
		require.EqualValues(t, plain.chatTokens, at(output, "responses.usage.total_tokens"))
		require.Contains(t, []any{"chair", "table"}, at(output, "made.item"))
		require.Equal(t, plain.text, output["completion"])
		vectors := output["vectors"].([]any)
		require.Len(t, vectors, 2)
		require.Len(t, vectors[0], 8)
		require.Equal(t, vectors[0], output["query"])
		require.NotEqual(t, vectors[0], vectors[1])
		require.EqualValues(t, http.StatusBadRequest, at(output, "refusal.status"))
		require.Equal(t, "temperature", at(output, "refusal.param"))
	})
	t.Run("openai for JavaScript, structured output", func(t *testing.T) {
		output := s.drive(t, nodeClientsDir(t), "node", "openai-structured.mjs", s.deployToolModel(user))
		isOrder(t, at(output, "parsed"), true)
		require.Equal(t, "stop", output["finish"])
		require.Equal(t, at(output, "parsed"), at(output, "streamed"))
		require.Equal(t, "place", at(output, "called.name"))
		require.Equal(t, "tool_calls", output["calledFinish"])
		isOrder(t, at(output, "called.parsed_arguments"), true)
		require.Equal(t, at(output, "called.arguments"), at(output, "calledPiecewise.arguments"))
		require.Equal(t, "LengthFinishReasonError", output["cut"])
	})
	t.Run("ai with its compatible provider, structured output", func(t *testing.T) {
		output := s.drive(t, nodeClientsDir(t), "node", "ai-structured.mjs", s.deployToolModel(user))
		isOrder(t, at(output, "made"), false)
		require.Equal(t, "stop", output["finish"])
		require.Equal(t, at(output, "made"), at(output, "streamed"))
		require.Greater(t, output["pieces"], 1.0)
		require.IsType(t, []any{}, output["list"], "%v", output["list"])
		require.Contains(t, []any{"chairs", "tables"}, output["choice"])
		require.Len(t, at(output, "named.stock"), 2)
		require.Equal(t, "tool-calls", output["calledFinish"])
		calls, ok := output["called"].([]any)
		require.True(t, ok && len(calls) > 0, "%v", output["called"])
		require.Equal(t, "place", at(calls[0].(object), "toolName"))
		require.Nil(t, at(calls[0].(object), "invalid"))
		isOrder(t, at(calls[0].(object), "input"), false)
		require.Equal(t, calls, output["calledPiecewise"])
	})
}

// deployToolModel deploys a copy of the built-in base model with a chat template that lists tools
// and how to call them, and returns the name of the model.
func (s *plane) deployToolModel(user caller) string {
	s.t.Helper()
	const name = "accounts/default/models/tool-model"
	if statusMessage(user, "/models/tool-model") == http.StatusOK {
		return name
	}
	dir := s.t.TempDir()
	require.NoError(s.t, embedded.WriteBase(dir))
	file := filepath.Join(dir, "tokenizer_config.json")
	config := object{}
	data := testutil.ReadFile(s.t, file)
	require.NoError(s.t, json.Unmarshal(data, &config))
	config["chat_template"] =
		"{{ bos_token }}{% for tool in tools %}{{ tool.function.name }} {% endfor %}{% for message in messages %}{{ " +
			"message.content }}" +
			"{% for call in message.tool_calls %}\n<tool_call>\n{\"name\": \"{{ call.function.name }}\", \"arguments\": {{ " +
			"call.function.arguments | tojson }}}\n</tool_call>{% endfor %}" +
			"{% if message.role == 'assistant' %}<|end|>{% else %}<|assistant|>{% endif %}{% endfor %}"
	data = testutil.Marshal(s.t, config)
	require.NoError(s.t, os.WriteFile(file, data, 0o600))
	s.run("model", "create", "tool-model", "--dir", dir).ok(s.t)
	user.deploy("tool-model", object{"baseModel": name})
	return name
}

// isOrder requires that said is a valid order. The client has already validated it against the
// schema. If whole is true, the nullable field must be present.
func isOrder(t *testing.T, output any, whole bool) {
	t.Helper()
	order, ok := output.(object)
	require.True(t, ok, "%v", output)
	require.Contains(t, []any{"person", "company"}, at(order, "customer.kind"))
	require.Regexp(t, `^[A-Z]{2}-\d{2}$`, order["code"])
	require.Regexp(t, `^\d{4}-\d{2}-\d{2}$`, order["when"])
	require.Contains(t, []any{"post", "van"}, at(order, "way.by"))
	require.NotEmpty(t, order["lines"])
	if _, given := order["note"]; whole {
		require.True(t, given, "a nullable field is present")
	}
}

// plainResponse holds the server's responses to plain HTTP requests.
type plainResponse struct {
	text, finish, chat, chatFinish string
	tokens, chatTokens             any
}

func (c caller) plainResponses() (p plainResponse) {
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

// agrees requires that a client library received the same responses as the plain HTTP requests.
func (p plainResponse) agrees(t *testing.T, output object) {
	t.Helper()
	for _, way := range []string{"completion", "stream"} {
		require.Equal(t, p.text, at(output, way+".text"), way)
		require.Equal(t, p.finish, at(output, way+".finish"), way)
	}
	for _, way := range []string{"chat", "chatStream"} {
		require.Equal(t, p.chat, at(output, way+".text"), way)
		require.Equal(t, p.chatFinish, at(output, way+".finish"), way)
	}
	require.Greater(t, at(output, "stream.chunks"), 1.0, "a stream has several chunks")
	require.Greater(t, at(output, "chatStream.chunks"), 1.0, "a stream has several chunks")
}

// agreesOnResponses requires that a client library received, through the Responses API, the same
// text as the plain HTTP chat request. ways are the fields of said to compare.
func (p plainResponse) agreesOnResponses(t *testing.T, output object, ways ...string) {
	t.Helper()
	for _, way := range ways {
		require.Equal(t, p.chat, at(output, way+".text"), way)
	}
}

// basePaths are the paths below which the inference API is served.
var basePaths = []string{"/inference/v1", "/v1"}

// checkedProxy returns the address of a proxy to the server that checks each exchange against the
// server's OpenAPI document.
func (s *plane) checkedProxy(t testing.TB) string {
	t.Helper()
	server, err := url.Parse(s.context.Address)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.Transport, proxy.FlushInterval = s.watched(), -1
	between := httptest.NewServer(proxy)
	t.Cleanup(between.Close)
	return between.URL
}

// drive runs a client's program against the server and returns the JSON object that the program
// prints.
func (s *plane) drive(t *testing.T, dir, program string, args ...string) object {
	t.Helper()
	return s.driveModel(t, baseModel, dir, program, args...)
}

func (s *plane) driveModel(t *testing.T, model, dir, program string, args ...string) object {
	t.Helper()
	return s.driveAt(t, basePaths[0], model, dir, program, args...)
}

// proxies returns the address of a chain of proxies to the server, which check each exchange against
// the server's OpenAPI document: prism, if the clients for JavaScript are installed, and
// checkedProxy. The tests of recordings do not use prism, which garbles them: see
// api.TestPrismGarblesBinaryForms.
func (s *plane) proxies(t *testing.T) string {
	program := filepath.Join(clientsDir(t, "node"), described.Prism)
	if _, err := os.Stat(program); err != nil || s.withoutPrism {
		return s.checkedProxy(t)
	}
	if s.prism == "" {
		res, err := s.user().send(http.MethodGet, "//openapi.json", nil)
		require.NoError(t, err)
		defer res.Body.Close()
		document := testutil.ReadAll(t, res.Body)
		s.prism = described.StartPrism(s.t, program, document, s.checkedProxy(s.t))
	}
	return described.WithoutViolations(t, s.prism)
}

// driveAt runs the program of a client with the given model, and with base as the path of its base
// URL.
func (s *plane) driveAt(t *testing.T, base, model, dir, program string, args ...string) (output object) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var out, stderr bytes.Buffer
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &stderr
	cmd.Env = environment(t.TempDir(), "BASE_URL="+s.proxies(t)+base, "API_KEY="+s.context.APIKey,
		"MODEL="+model, "PROMPT="+clientsPrompt)
	require.NoError(t, cmd.Run(), "%s%s", out.String(), stderr.String())
	require.NoError(t, json.Unmarshal(out.Bytes(), &output), "%s", out.String())
	return output
}

func clientsDir(t *testing.T, name string) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("testdata", "clients", name))
	require.NoError(t, err)
	return dir
}

// nodeClientsDir returns the directory in which the clients for JavaScript are installed.
func nodeClientsDir(t *testing.T) string {
	t.Helper()
	dir := clientsDir(t, "node")
	if _, err := os.Stat(filepath.Join(dir, "node_modules", "openai")); err != nil {
		t.Skip("the clients for JavaScript are not installed: run make clients, which needs npm")
	}
	return dir
}

// goClient builds the program in dir, which uses openai-go, and returns the program's path. It
// skips the test in a short run.
func goClient(t *testing.T, dir string) (program string) {
	t.Helper()
	if testing.Short() {
		t.Skip("it is downloaded and built first")
	}
	program = filepath.Join(t.TempDir(), "client")
	build := exec.Command("go", "build", "-o", program, dir)
	build.Dir = clientsDir(t, "openaigo")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return program
}

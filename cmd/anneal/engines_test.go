package main_test

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"image"
	"image/png"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/miniature"
	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// buildServers builds the fake servers of engines/external's tests once for all tests, as the programs
// that the default command lines of the engines start.
var buildServers = sync.OnceValues(func() (string, error) {
	if _, err := build(); err != nil { // which creates binaryDir
		return "", err
	}
	dir := filepath.Join(binaryDir, "servers")
	if err := os.Mkdir(dir, 0o755); err != nil {
		return "", err
	}
	vllm := filepath.Join(dir, "vllm")
	if out, err := exec.Command("go", "test", "-c", "-o", vllm, "anneal/engines/external").CombinedOutput(); err != nil {
		return "", &exec.Error{Name: "go test: " + string(out), Err: err}
	}
	return dir, os.Link(vllm, filepath.Join(dir, "llama-server"))
})

// A modelServer is a control plane whose local worker serves models with a fake server.
type modelServer struct {
	*plane
	caller
	engine string
	seen   map[string]bool // recordings of processes that earlier calls of started returned
}

// serveWith starts a control plane with an engine, and creates the models of newModels.
func serveWith(t *testing.T, engine string) *modelServer {
	t.Helper()
	if err := sandbox.NewRunner(sandbox.RunnerOptions{}).Check(t.Context()); err != nil {
		t.Skip(err)
	}
	dir, err := buildServers()
	require.NoError(t, err)
	s := &plane{t: t, dir: t.TempDir(), args: []string{"--engine", engine}, log: logFor(t, "anneal serve"),
		env: []string{"PATH=" + dir + string(os.PathListSeparator) + os.Getenv("PATH")}}
	s.start()
	s.joined()
	base, adapter := t.TempDir(), t.TempDir()
	require.NoError(t, miniature.Write(base, "qwen3"))
	writeAdapter(t, base, adapter)
	s.run("model", "create", "draft", "--dir", base).ok(t)
	require.NoError(t, os.WriteFile(filepath.Join(base, "mmproj-model-f16.gguf"), []byte("GGUF"), 0o600))
	s.run("model", "create", "tiny", "--dir", base).ok(t)
	s.run("model", "create", "adapted", "--dir", adapter, "--base-model", "tiny").ok(t)
	return &modelServer{s, s.user(), engine, map[string]bool{}}
}

// deploy deploys a model and returns the recording of its server.
func (s *modelServer) deploy(id, query string, settings object) recording {
	s.plane.t.Helper()
	settings["minReplicaCount"] = 1
	s.must(http.MethodPost, "/deployments?deploymentId="+id+query, settings)
	s.until("/deployments/"+id, "state", "READY")
	return s.started()
}

// warnings returns the warnings of a request, which must succeed.
func (s *modelServer) warnings(t *testing.T, method, path string, body object) []string {
	t.Helper()
	res, err := s.caller.send(method, path, body)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	return res.Header.Values("anneal-warning")
}

// A recording is the file in which a fake server records its arguments and requests.
type recording struct {
	t    testing.TB
	path string
}

// started returns the recording of the server that has started since the last call.
func (s *modelServer) started() recording {
	s.plane.t.Helper()
	var found []string
	require.NoError(s.plane.t, filepath.WalkDir(s.dir, func(path string, entry fs.DirEntry, err error) error {
		if entry != nil && entry.Name() == "recording.jsonl" && !s.seen[path] {
			found = append(found, path)
		}
		return nil // files of running programs come and go
	}))
	require.Len(s.plane.t, found, 1)
	s.seen[found[0]] = true
	return recording{s.plane.t, found[0]}
}

// lines returns the recorded objects.
func (r recording) lines() (all []object) {
	r.t.Helper()
	data := testutil.ReadFile(r.t, r.path)
	for line := range bytes.Lines(data) {
		var one object
		require.NoError(r.t, json.Unmarshal(line, &one))
		all = append(all, one)
	}
	require.NotEmpty(r.t, all)
	return all
}

// args returns the arguments with which the server was started.
func (r recording) args() (args []string) {
	r.t.Helper()
	list, _ := r.lines()[0]["args"].([]any)
	for _, one := range list {
		args = append(args, one.(string))
	}
	return args
}

// option returns the value of the option with the name among the server's arguments; "" without one.
func (r recording) option(name string) string {
	r.t.Helper()
	args := r.args()
	if at := slices.Index(args, name); at >= 0 && at+1 < len(args) {
		return args[at+1]
	}
	return ""
}

// last returns the body of the last request to a path.
func (r recording) last(path string) object {
	r.t.Helper()
	all := r.lines()
	for _, one := range slices.Backward(all) {
		if one["path"] == path {
			return one["body"].(object)
		}
	}
	require.FailNow(r.t, "the server received no request to "+path, "%v", all)
	return nil
}

// TestModelServers checks requests from the gateway to the servers of models: the options with which a
// server starts, and the requests that it receives.
func TestModelServers(t *testing.T) {
	t.Parallel()
	for _, engine := range []string{"vllm", "llama.cpp"} {
		t.Run(engine, func(t *testing.T) {
			t.Parallel()
			s := serveWith(t, engine)
			server := s.deploy("plain", "", object{"baseModel": "accounts/default/models/tiny"})
			checkOptions(t, engine, server)
			const plain = "accounts/default/deployments/plain"
			t.Run("chat completions", func(t *testing.T) { checkChats(t, s, server, plain) })
			t.Run("traces", func(t *testing.T) { checkTraces(t, s, server, plain) })
			t.Run("tools", func(t *testing.T) { checkTools(t, s, server, plain) })
			t.Run("structured output", func(t *testing.T) { checkFormats(t, s, server, plain) })
			t.Run("images", func(t *testing.T) { checkImages(t, s, server, plain) })
			t.Run("completions", func(t *testing.T) { checkCompletions(t, s) })
			t.Run("embeddings", func(t *testing.T) { checkEmbeddings(t, s, server, plain) })
			t.Run("adapters", func(t *testing.T) { checkAdapters(t, s) })
			t.Run("speculative decoding", func(t *testing.T) { checkSpeculation(t, s) })
			require.Zero(t, s.end())
		})
	}
}

func checkOptions(t *testing.T, engine string, server recording) {
	require.Equal(t, "127.0.0.1", server.option("--host"))
	if engine == "vllm" {
		require.Equal(t, "serve", server.args()[0])
		require.Equal(t, "model", server.option("--served-model-name"))
		require.Equal(t, "1", server.option("--tensor-parallel-size"))
		require.Contains(t, server.args(), "--enable-lora")
		return
	}
	require.Equal(t, "model", server.option("--alias"))
	require.True(t, strings.HasSuffix(server.option("-m"), "/model.gguf"), "the model is converted: %q", server.args())
	require.True(t, strings.HasSuffix(server.option("--mmproj"), "/mmproj-model-f16.gguf"), "%q", server.args())
}

// infer sends a request to the gateway, which must succeed without a warning.
func (s *modelServer) infer(t *testing.T, operation string, body object) object {
	t.Helper()
	res, err := s.caller.send(http.MethodPost, "//inference/v1/"+operation, body)
	require.NoError(t, err)
	defer res.Body.Close()
	var answer object
	require.NoError(t, json.NewDecoder(res.Body).Decode(&answer))
	require.Equal(t, http.StatusOK, res.StatusCode, "%v", answer)
	require.Empty(t, res.Header.Values("anneal-warning"))
	return answer
}

func message(content any) []object { return []object{{"role": "user", "content": content}} }

// choice returns the first choice of a response.
func choice(t *testing.T, answer object) object {
	t.Helper()
	choices, _ := answer["choices"].([]any)
	require.NotEmpty(t, choices, "%v", answer)
	return choices[0].(object)
}

// checkTraces checks that the trace context of a request reaches the server of the model.
func checkTraces(t *testing.T, s *modelServer, server recording, model string) {
	const parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
	body := object{"model": model, "messages": message("good morning"), "max_tokens": 2}
	for _, headers := range [][]string{{"traceparent", parent, "tracestate", "a=1"}, {"traceparent", "wrong"}} {
		res, err := s.caller.send(http.MethodPost, "//inference/v1/chat/completions", body, headers...)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, http.StatusOK, res.StatusCode)
		wantParent, wantState := "", ""
		if len(headers) > 2 {
			wantParent, wantState = parent, "a=1"
		}
		require.Equal(t, wantParent, res.Header.Get("traceparent"))
		all := server.lines()
		require.Equal(t, []any{wantParent, wantState}, []any{all[len(all)-1]["traceparent"], all[len(all)-1]["tracestate"]})
	}
}

func checkChats(t *testing.T, s *modelServer, server recording, model string) {
	body := object{"model": model, "messages": message("good morning"), "max_tokens": 12, "temperature": 0.5, "top_k": 7,
		"seed": 42, "stop": []string{"###"}, "ignore_eos": true}
	answer := s.infer(t, "chat/completions", body)
	text, _ := at(choice(t, answer), "message.content").(string)
	require.NotEmpty(t, text)
	require.Equal(t, "length", choice(t, answer)["finish_reason"])
	require.EqualValues(t, 12, at(answer, "usage.completion_tokens"))
	got := server.last("/v1/chat/completions")
	want := object{"model": "model", "max_tokens": 12.0, "temperature": 0.5, "top_k": 7.0, "seed": 42.0,
		"stop": []any{"###"}, "ignore_eos": true, "stream": true,
		"messages": []any{object{"role": "user", "content": "good morning"}}}
	for field, value := range want {
		require.Equal(t, value, got[field], field)
	}

	body["stream"] = true
	res, err := s.caller.send(http.MethodPost, "//inference/v1/chat/completions", body)
	require.NoError(t, err)
	defer res.Body.Close()
	require.Equal(t, http.StatusOK, res.StatusCode)
	streamed, done := "", false
	for scanner := bufio.NewScanner(res.Body); scanner.Scan(); {
		data, found := strings.CutPrefix(scanner.Text(), "data: ")
		if !found {
			continue
		}
		if done = data == "[DONE]"; done {
			break
		}
		var chunk object
		require.NoError(t, json.Unmarshal([]byte(data), &chunk))
		part, _ := at(choice(t, chunk), "delta.content").(string)
		streamed += part
	}
	require.True(t, done)
	require.Equal(t, text, streamed)
}

func checkTools(t *testing.T, s *modelServer, server recording, model string) {
	tool := object{"type": "function", "function": object{"name": "f", "parameters": object{"type": "object",
		"properties": object{"a": object{"type": "integer"}}}}}
	answer := s.infer(t, "chat/completions", object{"model": model, "messages": message("call f"), "max_tokens": 8,
		"tools": []object{tool}, "tool_choice": object{"type": "function", "function": object{"name": "f"}},
		"parallel_tool_calls": false})
	one := choice(t, answer)
	require.Equal(t, "tool_calls", one["finish_reason"])
	calls, _ := at(one, "message.tool_calls").([]any)
	require.Len(t, calls, 1, "%v", one)
	require.Equal(t, "f", at(calls[0].(object), "function.name"))
	require.Equal(t, `{"a":1}`, at(calls[0].(object), "function.arguments"))
	got := server.last("/v1/chat/completions")
	require.Equal(t, []any{tool}, got["tools"])
	require.Equal(t, object{"type": "function", "function": object{"name": "f"}}, got["tool_choice"])
	require.Equal(t, false, got["parallel_tool_calls"])

	// The next turn has the call and its result.
	s.infer(t, "chat/completions", object{"model": model, "max_tokens": 8, "tools": []object{tool},
		"tool_choice": "none", "messages": append(message("call f"),
			object{"role": "assistant", "tool_calls": calls},
			object{"role": "tool", "tool_call_id": calls[0].(object)["id"], "content": "2"})})
	messages := server.last("/v1/chat/completions")["messages"].([]any)
	require.Len(t, messages, 3)
	require.Equal(t, `{"a":1}`, at(at(messages[1].(object), "tool_calls").([]any)[0].(object), "function.arguments"))
	require.Equal(t, object{"role": "tool", "tool_call_id": calls[0].(object)["id"], "content": "2"}, messages[2])
}

func checkFormats(t *testing.T, s *modelServer, server recording, model string) {
	schema := object{"type": "object", "properties": object{"a": object{"type": "integer"}}}
	body := object{"model": model, "messages": message("give JSON"), "max_tokens": 8}
	body["response_format"] = object{"type": "json_schema", "json_schema": object{"name": "x", "schema": schema}}
	s.infer(t, "chat/completions", body)
	got := server.last("/v1/chat/completions")
	require.Equal(t, "json_schema", at(got, "response_format.type"))
	require.Equal(t, schema, at(got, "response_format.json_schema.schema"))
	body["response_format"] = object{"type": "json_object"}
	s.infer(t, "chat/completions", body)
	require.Equal(t, object{"type": "json_object"}, server.last("/v1/chat/completions")["response_format"])
	body["response_format"] = object{"type": "grammar", "grammar": `root ::= "yes" | "no"`}
	s.infer(t, "chat/completions", body)
	got = server.last("/v1/chat/completions")
	if s.engine == "vllm" {
		require.Equal(t, `root ::= "yes" | "no"`, at(got, "structured_outputs.grammar"))
	} else {
		require.Equal(t, `root ::= "yes" | "no"`, got["grammar"])
	}
}

func checkImages(t *testing.T, s *modelServer, server recording, model string) {
	var picture bytes.Buffer
	require.NoError(t, png.Encode(&picture, image.NewGray(image.Rect(0, 0, 3, 5))))
	url := "data:image/png;base64," + base64.StdEncoding.EncodeToString(picture.Bytes())
	body := object{"model": model, "max_tokens": 60, "temperature": 0, "messages": message("look: [3x5]")}
	want := at(choice(t, s.infer(t, "chat/completions", body)), "message.content")
	body["messages"] = message([]object{{"type": "text", "text": "look: "},
		{"type": "image_url", "image_url": object{"url": url}}})
	got := at(choice(t, s.infer(t, "chat/completions", body)), "message.content")
	require.Equal(t, want, got, "the fake server reads an image as a text with its size")
	content := func() any {
		return server.last("/v1/chat/completions")["messages"].([]any)[0].(object)["content"]
	}
	parts := func(text string) any {
		return []any{object{"type": "text", "text": text}, object{"type": "image_url", "image_url": object{"url": url}}}
	}
	require.Equal(t, parts("look: "), content())
	s.infer(t, "responses", object{"model": model, "max_output_tokens": 5, "input": message([]object{
		{"type": "input_text", "text": "respond: "}, {"type": "input_image", "image_url": url}})})
	require.Equal(t, parts("respond: "), content())
	file := filepath.Join(t.TempDir(), "picture")
	require.NoError(t, os.WriteFile(file, picture.Bytes(), 0o600))
	s.run("chat", "--model", model, "--max-tokens", "5", "--image", file, "what is it?").ok(t)
	require.Equal(t, parts("what is it?"), content())
}

// checkCompletions uses a model without a projector: with one, llama.cpp's server takes no token IDs.
func checkCompletions(t *testing.T, s *modelServer) {
	server := s.deploy("text", "", object{"baseModel": "accounts/default/models/draft"})
	const model = "accounts/default/deployments/text"
	body := object{"model": model, "prompt": "one two", "max_tokens": 6, "temperature": 0, "ignore_eos": true,
		"echo": true, "return_token_ids": true}
	answer := s.infer(t, "completions", body)
	require.True(t, strings.HasPrefix(textOf(t, answer), "one two"), "%v", answer)
	require.EqualValues(t, 6, at(answer, "usage.completion_tokens"))
	got := server.last("/v1/completions")
	require.Equal(t, "one two", got["prompt"])
	require.EqualValues(t, 6, got["max_tokens"])
	body = object{"model": model, "prompt": []int{1, 'a', 'b'}, "max_tokens": 2, "logit_bias": object{"5": -100},
		"logprobs": 1}
	one := choice(t, s.infer(t, "completions", body))
	require.NotNil(t, one["logprobs"])
	got = server.last("/v1/completions")
	require.Equal(t, []any{1.0, 97.0, 98.0}, got["prompt"])
	require.Equal(t, object{"5": -100.0}, got["logit_bias"])
	require.EqualValues(t, 1, got["logprobs"])
}

func checkEmbeddings(t *testing.T, s *modelServer, server recording, model string) {
	answer := s.infer(t, "embeddings", object{"model": model, "input": []string{"one", "two"}})
	data, _ := answer["data"].([]any)
	require.Len(t, data, 2, "%v", answer)
	require.NotEmpty(t, data[1].(object)["embedding"])
	require.Positive(t, at(answer, "usage.prompt_tokens"))
	require.Contains(t, []any{"one", "two"}, server.last("/v1/embeddings")["input"])
}

// checkAdapters checks a deployment that loads adapters while it serves, and one of a model with an
// adapter.
func checkAdapters(t *testing.T, s *modelServer) {
	const adapted = "accounts/default/models/adapted"
	server := s.deploy("shared", "", object{"baseModel": "accounts/default/models/tiny", "enableAddons": true})
	s.must(http.MethodPost, "/deployedModels?deployedModelId=one",
		object{"model": adapted, "deployment": "accounts/default/deployments/shared"})
	if s.engine == "vllm" {
		s.until("/deployedModels/one", "state", "DEPLOYED")
		loaded := server.last("/v1/load_lora_adapter")
		s.infer(t, "completions", object{"model": adapted, "prompt": "p", "max_tokens": 2})
		require.Equal(t, loaded["lora_name"], server.last("/v1/completions")["model"])
		s.infer(t, "completions", object{"model": "accounts/default/deployments/shared", "prompt": "p", "max_tokens": 2})
		require.Equal(t, "model", server.last("/v1/completions")["model"])
		s.must(http.MethodDelete, "/deployedModels/one", nil)
		eventually(t, "it is unloaded", func() bool {
			status, _, err := s.do(http.MethodGet, "/deployedModels/one", nil)
			return err == nil && status == http.StatusNotFound
		})
		eventually(t, "the server has unloaded it", func() bool {
			lines := server.lines()
			return lines[len(lines)-1]["path"] == "/v1/unload_lora_adapter"
		})
		alone := s.deploy("alone", "", object{"baseModel": adapted})
		require.True(t, strings.HasPrefix(alone.option("--lora-modules"), "tuned=/"), "%q", alone.args())
		s.infer(t, "completions", object{"model": "accounts/default/deployments/alone", "prompt": "p", "max_tokens": 2})
		require.Equal(t, "tuned", alone.last("/v1/completions")["model"])
		s.must(http.MethodDelete, "/deployments/alone?hard=true&ignoreChecks=true", nil)
	} else {
		var found object
		eventually(t, "it fails", func() bool {
			found = s.get("/deployedModels/one")
			return at(found, "status.code") == "FAILED_PRECONDITION"
		})
		require.Contains(t, at(found, "status.message"), "cannot load addons: deploy the addon as a separate model")
	}
	s.must(http.MethodDelete, "/deployments/shared?hard=true&ignoreChecks=true", nil)
}

func checkSpeculation(t *testing.T, s *modelServer) {
	draft := func(settings object) object {
		settings["baseModel"] = "accounts/default/models/tiny"
		return settings
	}
	const model = "accounts/default/models/draft"
	drafted := s.deploy("drafted", "", draft(object{"draftModel": model, "draftTokenCount": 4}))
	disabled := s.deploy("disabled", "&disableSpeculativeDecoding=true",
		draft(object{"draftModel": model, "draftTokenCount": 4}))
	ngrams := s.deploy("ngrams", "", draft(object{"ngramSpeculationLength": 3}))
	plain := s.deploy("undrafted", "", draft(object{}))
	if s.engine == "vllm" {
		const option = "--speculative-config"
		var config object
		require.NoError(t, json.Unmarshal([]byte(drafted.option(option)), &config))
		require.DirExists(t, config["model"].(string))
		require.EqualValues(t, 4, config["num_speculative_tokens"])
		config = nil
		require.NoError(t, json.Unmarshal([]byte(ngrams.option(option)), &config))
		require.Equal(t, object{"method": "ngram", "num_speculative_tokens": 5.0, "prompt_lookup_max": 3.0,
			"prompt_lookup_min": 3.0}, config)
		require.NotContains(t, disabled.args(), option)
		require.NotContains(t, plain.args(), option)
	} else {
		require.FileExists(t, drafted.option("--model-draft"))
		require.Equal(t, "4", drafted.option("--draft-max"))
		for _, other := range []recording{disabled, ngrams, plain} {
			require.NotContains(t, other.args(), "--model-draft")
		}
	}
	warnings := s.warnings(t, http.MethodPatch, "/deployments/undrafted", object{"ngramSpeculationLength": 2})
	if s.engine == "vllm" {
		require.Empty(t, warnings)
	} else {
		require.Equal(t, []string{"ngramSpeculationLength: accepted, but has no effect on nodes with the engine llama.cpp " +
			"or openai: the engine's model server is started without options for n-grams"}, warnings)
	}
	require.Equal(t, []string{"prediction: accepted, but has no effect on nodes with the engine vllm, llama.cpp or " +
		"openai: the engine drafts tokens only with the draft model or n-grams of the deployment"},
		s.warnings(t, http.MethodPost, "//inference/v1/completions", object{"max_tokens": 3, "prompt": "p",
			"model": "accounts/default/deployments/drafted", "prediction": "q"}))
	s.infer(t, "completions", object{"model": "accounts/default/deployments/drafted", "prompt": "p", "max_tokens": 3})
	require.Equal(t, "p", drafted.last("/v1/completions")["prompt"])
}

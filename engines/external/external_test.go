package external

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/enginetest"
	"anneal/engines/sandbox"
	"anneal/internal/testutil"
)

// options returns options that start the test binary as a fake server of a preset. mode selects a
// behavior of the fake server.
func options(t *testing.T, preset, mode string) Options {
	_, rest, _ := strings.Cut(presets[preset].command, " ")
	if preset == OpenAI {
		rest = "{dir} --port {port} {adapter}"
	}
	command := os.Args[0] + " " + rest
	return Options{
		Preset: preset, Command: command, Dir: t.TempDir(), RestartDelay: time.Millisecond,
		GracePeriod: 5 * time.Second,
		Env: []string{
			"FAKE_SERVER=" + preset, "FAKE_MODE=" + mode, "FAKE_FILE=" + filepath.Join(t.TempDir(), "file"),
		},
	}
}

// unconfined returns the options with a runner that runs the server without a sandbox, so that the
// server can write FAKE_FILE and bind ports of the host.
func unconfined(o Options) Options {
	o.Runner = sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
	return o
}

// files returns the files of a model that all presets can load.
func files(t *testing.T) engines.ModelFiles {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "model.gguf"), nil, 0o600))
	return engines.ModelFiles{Dir: dir}
}

func start(t *testing.T, o Options) engines.Model {
	t.Helper()
	c, err := New(o)
	require.NoError(t, err)
	m, err := c.Load(t.Context(), files(t))
	require.NoError(t, err)
	return m
}

func load(t *testing.T, preset, mode string) engines.Model {
	t.Helper()
	m := start(t, options(t, preset, mode))
	t.Cleanup(func() { assert.NoError(t, m.Close()) })
	return m
}

func TestModelConformance(t *testing.T) {
	for _, preset := range Presets() {
		t.Run(preset, func(t *testing.T) {
			enginetest.Model(t, func(t *testing.T) engines.Model { return start(t, options(t, preset, "")) })
		})
	}
}

// complete completes a request. It returns the concatenated chunks of the completion, the text of
// the echoed chunks, and the usage.
func complete(
	t *testing.T, m engines.Model, req engines.CompletionRequest,
) (all engines.Chunk, echoed string, usage engines.Usage) {
	t.Helper()
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		if c.Echoed {
			echoed += c.Text
			return nil
		}
		all.Text, all.Reasoning, all.Finish = all.Text+c.Text, all.Reasoning+c.Reasoning, c.Finish
		all.Tokens, all.Logprobs, all.ToolCalls = append(all.Tokens, c.Tokens...), append(all.Logprobs, c.Logprobs...),
			append(all.ToolCalls, c.ToolCalls...)
		if c.Prompt != nil {
			all.Prompt = c.Prompt
		}
		return nil
	})
	require.NoError(t, err)
	return all, echoed, usage
}

// TestContextLengthOfTheReplica checks that ModelFiles.ContextLength limits completions below
// the server's own limit if the server can count the tokens of a prompt.
func TestContextLengthOfTheReplica(t *testing.T) {
	for preset, contextLength := range map[string]int{VLLM: 20, LlamaCpp: 20, OpenAI: 0} {
		t.Run(preset, func(t *testing.T) {
			c, err := New(options(t, preset, ""))
			require.NoError(t, err)
			limited := files(t)
			limited.ContextLength = 20
			m, err := c.Load(t.Context(), limited)
			require.NoError(t, err)
			defer m.Close()
			all, _, usage := complete(t, m,
				engines.CompletionRequest{Prompt: "p", MaxTokens: 30, IgnoreEOS: contextLength > 0})
			require.Equal(t, contextLength, usage.ContextLength)
			if contextLength > 0 {
				require.Equal(t, engines.FinishLength, all.Finish)
				require.Equal(t, contextLength, usage.PromptTokens+usage.CompletionTokens)
			}
		})
	}
}

func TestContentsOfCompletions(t *testing.T) {
	tool := []byte(`{"type":"function","function":{"name":"f"}}`)
	for _, preset := range []string{VLLM, LlamaCpp} {
		t.Run(preset, func(t *testing.T) {
			m := load(t, preset, "")
			all, echoed, usage := complete(t, m, engines.CompletionRequest{Prompt: "naïve", MaxTokens: 6, IgnoreEOS: true,
				Echo: true, ReturnTokenIDs: true})
			require.Equal(t, "naïve", echoed)
			require.Len(t, all.Tokens, 6)
			require.NotEmpty(t, all.Prompt.Tokens)
			require.Equal(t, engines.Usage{PromptTokens: 7, CompletionTokens: 6, CachedTokens: 1,
				ContextLength: fakeContextLength},
				usage)

			_, echoed, _ = complete(t, m, engines.CompletionRequest{PromptTokens: []int{1, 'a', 'b', 'c'}, MaxTokens: 2,
				EchoLast: 2})
			require.Equal(t, "bc", echoed)

			all, _, _ = complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 4, IgnoreEOS: true, Logprobs: true,
				TopLogprobs: 1, Temperature: 1})
			require.Len(t, all.Logprobs, 4)
			text := ""
			for i, one := range all.Logprobs {
				require.Equal(t, all.Tokens[i], one.Token)
				require.Equal(t, len([]rune(text)), one.Offset)
				require.Equal(t, -0.5, one.Logprob)
				require.Equal(t, one.Text, string(one.Bytes))
				require.Len(t, one.Top, 1)
				text += one.Text
			}
			require.Equal(t, all.Text, text)

			all, _, _ = complete(t, m, engines.CompletionRequest{MaxTokens: 20,
				Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: "call f"}},
					Tools: []json.RawMessage{tool}}})
			require.Equal(t, "hm", all.Reasoning)
			require.Equal(t, engines.FinishToolCalls, all.Finish)
			require.Equal(t, []engines.ToolCall{{ID: "call-1", Name: "f", Arguments: `{"a":`}, {Arguments: `1}`}}, all.ToolCalls)
		})
	}
}

func TestLoadFailsIfTheServerDoesNotStart(t *testing.T) {
	for _, line := range []struct{ mode, message string }{
		{"exit", "exit status 3; last output: CUDA out of memory: buy more"},
		{"unhealthy", "the model server did not become healthy: no time left"},
	} {
		t.Run(line.mode, func(t *testing.T) {
			o := options(t, VLLM, line.mode)
			c, err := New(o)
			require.NoError(t, err)
			ctx := t.Context()
			if line.mode == "unhealthy" {
				limited, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("no time left"))
				defer cancel()
				ctx = limited
			}
			_, err = c.Load(ctx, files(t))
			require.ErrorContains(t, err, line.message)
			left := testutil.ReadDir(t, o.Dir)
			require.Empty(t, left, "no temporary files are left")
		})
	}
}

// TestStartRetriesOnAnotherPort checks that a server starts if another process binds its port
// before the server does.
func TestStartRetriesOnAnotherPort(t *testing.T) {
	other := httptest.NewServer(http.NotFoundHandler())
	defer other.Close()
	o := unconfined(options(t, VLLM, ""))
	chosen := 0
	o.port = func() (int, error) {
		if chosen++; chosen == 1 {
			return other.Listener.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	}
	m := start(t, o)
	defer m.Close()
	require.Equal(t, 2, chosen)
	mustComplete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
}

func TestServerWithMuchOutput(t *testing.T) {
	m := load(t, LlamaCpp, "flood")
	mustComplete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
}

func TestBrokenStreams(t *testing.T) {
	for _, line := range []struct {
		mode    string
		code    domain.Code
		message string
	}{
		{"invalidEvent", domain.Internal, "an invalid event"},
		{"cutBetweenEvents", domain.Unavailable, "retry the request"},
		{"cutWithinEvent", domain.Unavailable, "retry the request"},
		{"errorEvent", domain.Internal, "EngineDeadError"},
	} {
		t.Run(line.mode, func(t *testing.T) {
			m := load(t, VLLM, line.mode)
			_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 30, IgnoreEOS: true})
			require.Equal(t, line.code, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, line.message)
		})
	}
}

// TestCancelDisconnectsFromTheServer checks that canceling a completion closes the connection to
// the server. The fake server writes a file when its client has disconnected.
func TestCancelDisconnectsFromTheServer(t *testing.T) {
	o := unconfined(options(t, VLLM, "endless"))
	m := start(t, o)
	defer m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	chunks := 0
	_, err := m.Complete(ctx, engines.CompletionRequest{Prompt: "p", MaxTokens: 30}, func(engines.Chunk) error {
		if chunks++; chunks == 10 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	file := strings.TrimPrefix(o.Env[2], "FAKE_FILE=")
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 20*time.Second, 5*time.Millisecond)
}

// crash makes the server exit and waits until s has noticed.
func crash(t *testing.T, m engines.Model, s *server) {
	t.Helper()
	before, err := s.address()
	require.NoError(t, err)
	require.Error(t, s.callAt(t.Context(), before, "POST", "/crash", body{}, nil))
	require.Eventually(t, func() bool { url, _ := s.address(); return url != before }, 20*time.Second, time.Millisecond)
}

func TestCrashedServerIsRestarted(t *testing.T) {
	m := load(t, VLLM, "").(loader)
	adapter := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte("{}"), 0o600))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter))
	require.NoError(t, os.RemoveAll(adapter), "a restarted server does not need the original files")
	crash(t, m, m.server)
	require.Eventually(t, func() bool { url, _ := m.server.address(); return url != "" }, 20*time.Second, time.Millisecond)
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3, Addon: "a"})
	require.NoError(t, err, "the addon is loaded again")
}

func TestServerFailsAfterMaxCrashes(t *testing.T) {
	o := unconfined(options(t, LlamaCpp, "startOnce"))
	o.MaxCrashes = 3
	m := start(t, o)
	defer m.Close()
	crash(t, m, m.(*model).server)
	cause := <-m.(engines.FailureNotifier).Failed()
	require.ErrorContains(t, cause, "second start")
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "second start")
}

func TestLoadAndUnloadAddon(t *testing.T) {
	m := load(t, VLLM, "").(engines.AddonLoader)
	adapter := t.TempDir()
	req := engines.CompletionRequest{Prompt: "p", MaxTokens: 3, Addon: "a"}
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(m.LoadAddon(t.Context(), "a", adapter)), "empty directory")
	_, err := enginetest.Complete(t, m, req)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
	require.NoError(t, os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte("{}"), 0o600))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter), "loading a loaded addon has no effect")
	mustComplete(t, m, req)
	reported, err := m.(engines.LoadReporter).Load(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 12_000, reported.CacheUsed)
	require.NoError(t, m.UnloadAddon("a"))
	require.NoError(t, m.UnloadAddon("a"))
	_, err = enginetest.Complete(t, m, req)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
	_, ok := load(t, LlamaCpp, "").(engines.AddonLoader)
	require.False(t, ok)
}

// TestLoadOfUnknownOutcome checks that an addon whose load was canceled is not loaded, although the
// server has carried out the load, and that loading an addon succeeds if only the server already
// has the addon.
func TestLoadOfUnknownOutcome(t *testing.T) {
	o := unconfined(options(t, VLLM, ""))
	m := start(t, o).(loader)
	defer m.Close()
	adapter := t.TempDir()
	for _, name := range []string{"adapter_config.json", waitsForDisconnect} {
		require.NoError(t, os.WriteFile(filepath.Join(adapter, name), []byte("{}"), 0o600))
	}
	ctx, cancel := context.WithCancel(t.Context())
	outcome := make(chan error, 1)
	go func() { outcome <- m.LoadAddon(ctx, "a", adapter) }()
	file := strings.TrimPrefix(o.Env[2], "FAKE_FILE=")
	require.Eventually(t, func() bool { _, err := os.Stat(file); return err == nil }, 20*time.Second, 5*time.Millisecond)
	cancel()
	require.ErrorIs(t, <-outcome, context.Canceled)
	unloaded, err := m.server.unloadAddon(t.Context(), "a")
	require.NoError(t, err)
	require.False(t, unloaded, "the server does not have the addon")

	require.NoError(t, os.Remove(filepath.Join(adapter, waitsForDisconnect)))
	require.NoError(t, m.server.loadAddon(t.Context(), "a", adapter))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter), "the server already has it")
	mustComplete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3, Addon: "a"})
}

func TestModelWithAnAdapter(t *testing.T) {
	c, err := New(options(t, VLLM, ""))
	require.NoError(t, err)
	both := files(t)
	both.AdapterDir = t.TempDir()
	m, err := c.Load(t.Context(), both)
	require.NoError(t, err)
	defer m.Close()
	mustComplete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})

	c, err = New(options(t, LlamaCpp, ""))
	require.NoError(t, err)
	_, err = c.Load(t.Context(), both)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "the adapter has no GGUF file")
	_, err = c.Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
	require.ErrorContains(t, err, "the model has no GGUF file")
}

func TestCloseStopsTheServer(t *testing.T) {
	m := start(t, options(t, OpenAI, ""))
	url, err := m.(*model).server.address()
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.Error(t, m.(*model).server.callAt(t.Context(), url, "GET", "/v1/models", nil, nil))
	require.NoDirExists(t, m.(*model).own)
}

func TestPromptCacheIsDisabledForSeveralScopes(t *testing.T) {
	m := &model{preset: presets[LlamaCpp]}
	var enabled []any
	for _, scope := range []string{"a", "a", "b", "a"} {
		b := body{}
		m.setPromptCache(b, scope)
		enabled = append(enabled, b["cache_prompt"])
	}
	require.Equal(t, []any{true, true, false, false}, enabled)
}

func TestNewRejectsInvalidOptions(t *testing.T) {
	for name, line := range map[string]struct {
		options Options
		code    domain.Code
		message string
	}{
		"an unknown preset": {Options{Preset: "triton"}, domain.InvalidArgument, "use one of vllm, llama.cpp, openai"},
		"no command":        {Options{Preset: OpenAI}, domain.InvalidArgument, "engine-command: is required"},
		"no port":           {Options{Preset: OpenAI, Command: "true {dir}"}, domain.InvalidArgument, "{port}"},
		"an open quote":     {Options{Preset: OpenAI, Command: "true '{port}"}, domain.InvalidArgument, "an open quote"},
		"a missing program": {Options{Preset: VLLM, Command: "no-such-vllm {port}"}, domain.FailedPrecondition,
			"pip install vllm"},
		"only spaces": {Options{Preset: OpenAI, Command: "  "}, domain.InvalidArgument, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(line.options)
			require.Equal(t, line.code, domain.CodeOf(err))
			require.ErrorContains(t, err, line.message)
		})
	}
}

func TestCommandLines(t *testing.T) {
	words, err := parse(`run "a b" --m '{dir}/x' {gguf} --port={port} c\ d {adapter} ""`)
	require.NoError(t, err)
	args := arguments{dir: "/models/my model", gguf: "/m.gguf", port: 80}
	require.Equal(t, []string{"run", "a b", "--m", "/models/my model/x", "/m.gguf", "--port=80", "c d", ""},
		words.expand(args, presets[LlamaCpp].adapter))
	args.adapter = "/a.gguf"
	require.Equal(t, []string{"c d", "--lora", "/a.gguf", ""}, words.expand(args, presets[LlamaCpp].adapter)[6:])
	require.ErrorContains(t, template{"run", "{port}"}.check(args), "has no {adapter}")
}

// TestVisibleDevices checks that a server sees only the accelerators of its replica. Without
// accelerators it inherits the environment variables of this process.
func TestVisibleDevices(t *testing.T) {
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
	l4, other := "VENDOR_A_L4_24GB", "VENDOR_B_MI300X_192GB"
	for name, one := range map[string]struct {
		preset  string
		devices []engines.Device
		want    string
	}{
		"two":           {VLLM, []engines.Device{{Type: l4, Index: 1}, {Type: l4, Index: 3}}, `["1,3","PCI_BUS_ID","","2"]`},
		"another's":     {VLLM, []engines.Device{{Type: other, Index: 5}}, `["0,1,2,3","","5","1"]`},
		"none":          {VLLM, nil, `["0,1,2,3","","","1"]`},
		"without flags": {LlamaCpp, []engines.Device{{Type: l4, Index: 2}}, `["2","PCI_BUS_ID","",""]`},
	} {
		t.Run(name, func(t *testing.T) {
			o, file := unconfined(options(t, one.preset, "writeDevices")), filepath.Join(t.TempDir(), "file")
			o.Env[2] = "FAKE_FILE=" + file
			c, err := New(o)
			require.NoError(t, err)
			model := files(t)
			model.Devices = one.devices
			m, err := c.Load(t.Context(), model)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			devices := testutil.ReadFile(t, file)
			require.Equal(t, one.want, string(devices))
		})
	}
}

// mustComplete returns the completion of a request.
func mustComplete(t *testing.T, m engines.Model, req engines.CompletionRequest) enginetest.Completion {
	t.Helper()
	a, err := enginetest.Complete(t, m, req)
	require.NoError(t, err)
	return a
}

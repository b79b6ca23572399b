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
)

// options start this program as a fake server of a preset.
func options(t *testing.T, preset, mode string) Options {
	_, rest, _ := strings.Cut(presets[preset].command, " ")
	if preset == OpenAI {
		rest = "{dir} --port {port} {adapter}"
	}
	command := os.Args[0] + " " + rest
	return Options{Preset: preset, Command: command, Dir: t.TempDir(), RestartDelay: time.Millisecond, GracePeriod: 5 * time.Second,
		Env: []string{"FAKE_SERVER=" + preset, "FAKE_MODE=" + mode, "FAKE_FILE=" + filepath.Join(t.TempDir(), "note")}}
}

// plain starts the server without a sandbox, so that it can write its note where the test reads it,
// or listen where others do.
func plain(o Options) Options {
	o.Runner = sandbox.NewRunner(sandbox.RunnerOptions{Plain: true})
	return o
}

// files are a model that any preset can be started with.
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

func TestModelsKeepThePromisesOfEngines(t *testing.T) {
	for _, preset := range Presets() {
		t.Run(preset, func(t *testing.T) {
			enginetest.Model(t, func(t *testing.T) engines.Model { return start(t, options(t, preset, "")) })
		})
	}
}

// hear completes a request and joins the pieces.
func hear(t *testing.T, m engines.Model, req engines.CompletionRequest) (all engines.Chunk, echoed string, usage engines.Usage) {
	t.Helper()
	usage, err := m.Complete(t.Context(), req, func(c engines.Chunk) error {
		if c.Echoed {
			echoed += c.Text
			return nil
		}
		all.Text, all.Reasoning, all.Finish = all.Text+c.Text, all.Reasoning+c.Reasoning, c.Finish
		all.Tokens, all.Logprobs, all.ToolCalls = append(all.Tokens, c.Tokens...), append(all.Logprobs, c.Logprobs...), append(all.ToolCalls, c.ToolCalls...)
		if c.Prompt != nil {
			all.Prompt = c.Prompt
		}
		return nil
	})
	require.NoError(t, err)
	return all, echoed, usage
}

// A window that is asked for bounds answers also where the server's is longer, if
// the server can count a prompt's tokens.
func TestAWindowThatIsAskedFor(t *testing.T) {
	for preset, window := range map[string]int{VLLM: 20, LlamaCpp: 20, OpenAI: 0} {
		t.Run(preset, func(t *testing.T) {
			c, err := New(options(t, preset, ""))
			require.NoError(t, err)
			asked := files(t)
			asked.ContextLength = 20
			m, err := c.Load(t.Context(), asked)
			require.NoError(t, err)
			defer m.Close()
			all, _, usage := hear(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 30, IgnoreEOS: window > 0})
			require.Equal(t, window, usage.ContextLength)
			if window > 0 {
				require.Equal(t, engines.FinishLength, all.Finish)
				require.Equal(t, window, usage.PromptTokens+usage.CompletionTokens)
			}
		})
	}
}

func TestWhatAnAnswerTells(t *testing.T) {
	tool := []byte(`{"type":"function","function":{"name":"f"}}`)
	for _, preset := range []string{VLLM, LlamaCpp} {
		t.Run(preset, func(t *testing.T) {
			m := load(t, preset, "")
			all, echoed, usage := hear(t, m, engines.CompletionRequest{Prompt: "naïve", MaxTokens: 6, IgnoreEOS: true, Echo: true, ReturnTokenIDs: true})
			require.Equal(t, "naïve", echoed)
			require.Len(t, all.Tokens, 6)
			require.NotEmpty(t, all.Prompt.Tokens)
			require.Equal(t, engines.Usage{PromptTokens: 7, CompletionTokens: 6, CachedTokens: 1, ContextLength: fakeWindow}, usage)

			_, echoed, _ = hear(t, m, engines.CompletionRequest{PromptTokens: []int{1, 'a', 'b', 'c'}, MaxTokens: 2, EchoLast: 2})
			require.Equal(t, "bc", echoed)

			all, _, _ = hear(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 4, IgnoreEOS: true, Logprobs: true, TopLogprobs: 1, Temperature: 1})
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

			all, _, _ = hear(t, m, engines.CompletionRequest{MaxTokens: 20, Chat: &engines.Chat{Messages: []engines.Message{{Role: "user", Content: "call f"}}, Tools: []json.RawMessage{tool}}})
			require.Equal(t, "hm", all.Reasoning)
			require.Equal(t, engines.FinishToolCalls, all.Finish)
			require.Equal(t, []engines.ToolCall{{ID: "call-1", Name: "f", Arguments: `{"a":`}, {Arguments: `1}`}}, all.ToolCalls)
		})
	}
}

func TestServersThatDoNotStart(t *testing.T) {
	for _, line := range []struct{ mode, says string }{{"dies", "exit status 3; last output: CUDA out of memory: buy more"}, {"hangs", "the server was not ready: no time left"}} {
		t.Run(line.mode, func(t *testing.T) {
			o := options(t, VLLM, line.mode)
			c, err := New(o)
			require.NoError(t, err)
			ctx := t.Context()
			if line.mode == "hangs" {
				bound, cancel := context.WithTimeoutCause(ctx, time.Second, errors.New("no time left"))
				defer cancel()
				ctx = bound
			}
			_, err = c.Load(ctx, files(t))
			require.ErrorContains(t, err, line.says)
			left, err := os.ReadDir(o.Dir)
			require.NoError(t, err)
			require.Empty(t, left, "nothing is left behind")
		})
	}
}

// Between the choice of a port and the server's own listening anybody may take
// the port.
func TestAPortThatIsTakenMeanwhile(t *testing.T) {
	robber := httptest.NewServer(http.NotFoundHandler())
	defer robber.Close()
	o := plain(options(t, VLLM, ""))
	chosen := 0
	o.port = func() (int, error) {
		if chosen++; chosen == 1 {
			return robber.Listener.Addr().(*net.TCPAddr).Port, nil
		}
		return freePort()
	}
	m := start(t, o)
	defer m.Close()
	require.Equal(t, 2, chosen)
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
	require.NoError(t, err)
}

func TestAServerThatFloodsItsOutput(t *testing.T) {
	m := load(t, LlamaCpp, "floods")
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
	require.NoError(t, err)
}

func TestAnswersThatBreakOff(t *testing.T) {
	for _, line := range []struct {
		mode string
		code domain.Code
		says string
	}{
		{"garbage", domain.Internal, "what is no event"}, {"cuts", domain.Unavailable, "send the request again"},
		{"tears", domain.Unavailable, "send the request again"}, {"fails", domain.Internal, "EngineDeadError"},
	} {
		t.Run(line.mode, func(t *testing.T) {
			m := load(t, VLLM, line.mode)
			_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 30, IgnoreEOS: true})
			require.Equal(t, line.code, domain.CodeOf(err), "%v", err)
			require.ErrorContains(t, err, line.says)
		})
	}
}

// TestACancelledAnswerEndsAtTheServer waits for the server's own note that its
// reader is gone.
func TestACancelledAnswerEndsAtTheServer(t *testing.T) {
	o := plain(options(t, VLLM, "endless"))
	m := start(t, o)
	defer m.Close()
	ctx, cancel := context.WithCancel(t.Context())
	pieces := 0
	_, err := m.Complete(ctx, engines.CompletionRequest{Prompt: "p", MaxTokens: 30}, func(engines.Chunk) error {
		if pieces++; pieces == 10 {
			cancel()
		}
		return nil
	})
	require.ErrorIs(t, err, context.Canceled)
	note := strings.TrimPrefix(o.Env[2], "FAKE_FILE=")
	require.Eventually(t, func() bool { _, err := os.Stat(note); return err == nil }, 20*time.Second, 5*time.Millisecond)
}

// die kills the server, and waits until that was noticed.
func die(t *testing.T, m engines.Model, s *server) {
	t.Helper()
	before, err := s.at()
	require.NoError(t, err)
	require.Error(t, s.askAt(t.Context(), before, "POST", "/die", body{}, nil))
	require.Eventually(t, func() bool { url, _ := s.at(); return url != before }, 20*time.Second, time.Millisecond)
}

func TestAServerThatDiesIsStartedAgain(t *testing.T) {
	m := load(t, VLLM, "").(loader)
	adapter := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte("{}"), 0o600))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter))
	require.NoError(t, os.RemoveAll(adapter), "it is not needed any more")
	die(t, m, m.server)
	require.Eventually(t, func() bool { url, _ := m.server.at(); return url != "" }, 20*time.Second, time.Millisecond)
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3, Addon: "a"})
	require.NoError(t, err, "it has its addon again")
}

func TestAServerThatDiesTooOftenIsGivenUp(t *testing.T) {
	o := plain(options(t, LlamaCpp, "once"))
	o.MaxCrashes = 3
	m := start(t, o)
	defer m.Close()
	die(t, m, m.(*model).server)
	why := <-m.(engines.FailureNotifier).Failed()
	require.ErrorContains(t, why, "never again")
	_, err := enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
	require.Equal(t, domain.Unavailable, domain.CodeOf(err))
	require.ErrorContains(t, err, "never again")
}

func TestAddonsComeAndGo(t *testing.T) {
	m := load(t, VLLM, "").(engines.AddonLoader)
	adapter := t.TempDir()
	ask := engines.CompletionRequest{Prompt: "p", MaxTokens: 3, Addon: "a"}
	require.Equal(t, domain.InvalidArgument, domain.CodeOf(m.LoadAddon(t.Context(), "a", adapter)), "it is none")
	_, err := enginetest.Complete(t, m, ask)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
	require.NoError(t, os.WriteFile(filepath.Join(adapter, "adapter_config.json"), []byte("{}"), 0o600))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter))
	require.NoError(t, m.LoadAddon(t.Context(), "a", adapter), "once more is no error")
	_, err = enginetest.Complete(t, m, ask)
	require.NoError(t, err)
	require.NoError(t, m.UnloadAddon("a"))
	require.NoError(t, m.UnloadAddon("a"))
	_, err = enginetest.Complete(t, m, ask)
	require.Equal(t, engines.ErrAddonNotLoaded("a"), err)
	_, can := load(t, LlamaCpp, "").(engines.AddonLoader)
	require.False(t, can)
}

func TestAModelWithAnAdapter(t *testing.T) {
	c, err := New(options(t, VLLM, ""))
	require.NoError(t, err)
	both := files(t)
	both.AdapterDir = t.TempDir()
	m, err := c.Load(t.Context(), both)
	require.NoError(t, err)
	defer m.Close()
	_, err = enginetest.Complete(t, m, engines.CompletionRequest{Prompt: "p", MaxTokens: 3})
	require.NoError(t, err)

	c, err = New(options(t, LlamaCpp, ""))
	require.NoError(t, err)
	_, err = c.Load(t.Context(), both)
	require.Equal(t, domain.FailedPrecondition, domain.CodeOf(err))
	require.ErrorContains(t, err, "the adapter has no GGUF file")
	_, err = c.Load(t.Context(), engines.ModelFiles{Dir: t.TempDir()})
	require.ErrorContains(t, err, "the model has no GGUF file")
}

func TestClosingEndsTheServer(t *testing.T) {
	m := start(t, options(t, OpenAI, ""))
	url, err := m.(*model).server.at()
	require.NoError(t, err)
	require.NoError(t, m.Close())
	require.Error(t, m.(*model).server.askAt(t.Context(), url, "GET", "/v1/models", nil, nil))
	require.NoDirExists(t, m.(*model).own)
}

func TestPromptsAreSharedWithinOneScopeOnly(t *testing.T) {
	m := &model{preset: presets[LlamaCpp]}
	var shared []any
	for _, scope := range []string{"a", "a", "b", "a"} {
		b := body{}
		m.share(b, scope)
		shared = append(shared, b["cache_prompt"])
	}
	require.Equal(t, []any{true, true, false, false}, shared)
}

func TestWhatCannotBeStarted(t *testing.T) {
	for name, line := range map[string]struct {
		options Options
		code    domain.Code
		says    string
	}{
		"an unknown preset":  {Options{Preset: "triton"}, domain.InvalidArgument, "use one of vllm, llama.cpp, openai"},
		"no command":         {Options{Preset: OpenAI}, domain.InvalidArgument, "engine-command: is required"},
		"no port":            {Options{Preset: OpenAI, Command: "true {dir}"}, domain.InvalidArgument, "{port}"},
		"an open quote":      {Options{Preset: OpenAI, Command: "true '{port}"}, domain.InvalidArgument, "left open"},
		"a missing program":  {Options{Preset: VLLM, Command: "no-such-vllm {port}"}, domain.FailedPrecondition, "pip install vllm"},
		"nothing but spaces": {Options{Preset: OpenAI, Command: "  "}, domain.InvalidArgument, "is empty"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(line.options)
			require.Equal(t, line.code, domain.CodeOf(err))
			require.ErrorContains(t, err, line.says)
		})
	}
}

func TestCommandLines(t *testing.T) {
	words, err := parse(`run "a b" --m '{dir}/x' {gguf} --port={port} c\ d {adapter} ""`)
	require.NoError(t, err)
	at := place{dir: "/models/my model", gguf: "/m.gguf", port: 80}
	require.Equal(t, []string{"run", "a b", "--m", "/models/my model/x", "/m.gguf", "--port=80", "c d", ""}, words.expand(at, presets[LlamaCpp].adapter))
	at.adapter = "/a.gguf"
	require.Equal(t, []string{"c d", "--lora", "/a.gguf", ""}, words.expand(at, presets[LlamaCpp].adapter)[6:])
	require.ErrorContains(t, template{"run", "{port}"}.check(at), "has no {adapter}")
}

// A server sees the accelerators of its replica and no others; one whose replica
// takes none sees what the worker does.
func TestServersSeeTheirDevices(t *testing.T) {
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
			o, note := options(t, one.preset, "tells"), filepath.Join(t.TempDir(), "note")
			o.Env[2], o.Runner = "FAKE_FILE="+note, plain(o).Runner
			c, err := New(o)
			require.NoError(t, err)
			model := files(t)
			model.Devices = one.devices
			m, err := c.Load(t.Context(), model)
			require.NoError(t, err)
			require.NoError(t, m.Close())
			told, err := os.ReadFile(note)
			require.NoError(t, err)
			require.Equal(t, one.want, string(told))
		})
	}
}

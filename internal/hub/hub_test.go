package hub_test

import (
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/internal/hub"
	"anneal/internal/hub/hubtest"
	"anneal/internal/testutil"
)

func TestParseRef(t *testing.T) {
	for text, want := range map[string]hub.Ref{
		"hf://org/name":               {Repo: "org/name", Revision: "main"},
		"hf://name":                   {Repo: "name", Revision: "main"},
		"hf://Org-1/na_me.v2@v1.0":    {Repo: "Org-1/na_me.v2", Revision: "v1.0"},
		"hf://org/name@refs/pr/1":     {Repo: "org/name", Revision: "refs/pr/1"},
		"hf://org/name@" + "0123abcd": {Repo: "org/name", Revision: "0123abcd"},
	} {
		got, err := hub.ParseRef(text)
		require.NoError(t, err, text)
		require.Equal(t, want, got)
	}
	for _, text := range []string{"", "org/name", "hf://", "hf://a/b/c", "hf://../x", "hf://a/..", "hf://a/b@",
		"hf://a/b@../x",
		"hf://a/b?x=y", "hf://a b", "https://huggingface.co/a/b"} {
		_, err := hub.ParseRef(text)
		require.ErrorContains(t, err, "hf://ORG/NAME@REVISION", text)
	}
}

// serve returns a server with the model org/tiny, and a client of the server.
func serve(t *testing.T, files map[string]string) (*hubtest.Server, *hub.Hub) {
	t.Helper()
	s := &hubtest.Server{TB: t, Dir: t.TempDir()}
	for name, content := range files {
		path := filepath.Join(s.Dir, "org", "tiny", filepath.FromSlash(name))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	listener := httptest.NewServer(s)
	t.Cleanup(listener.Close)
	return s, &hub.Hub{URL: listener.URL, Client: listener.Client()}
}

func TestDownload(t *testing.T) {
	files := map[string]string{"config.json": strings.Repeat("c", 5000), "model.safetensors": strings.Repeat("w", 300_000)}
	s, h := serve(t, files)
	s.Cut = 2000
	m, err := h.Model(t.Context(), hub.Ref{Repo: "org/tiny", Revision: "main"})
	require.NoError(t, err)
	require.Equal(t, "hf://org/tiny@"+hubtest.Commit, m.Name())
	dir, moved := t.TempDir(), int64(0)
	for _, f := range m.Files {
		require.NoError(t, h.Download(t.Context(), m, f, dir, func(n int64) { moved += n }))
		got := testutil.ReadFile(t, filepath.Join(dir, f.Name))
		require.Equal(t, files[f.Name], string(got))
	}
	require.Equal(t, int64(305_000), moved)
	require.Equal(t, []string{"GET org/tiny/config.json", "GET org/tiny/config.json bytes=2000-",
		"GET org/tiny/model.safetensors", "GET org/tiny/model.safetensors bytes=2000-"}, s.Requests)

	t.Run("a complete file is not downloaded again", func(t *testing.T) {
		before := len(s.Requests)
		require.NoError(t, h.Download(t.Context(), m, m.Files[0], dir, func(int64) {}))
		require.Len(t, s.Requests, before)
	})
	t.Run("a file of another command continues", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "model.safetensors.part"), []byte(strings.Repeat("w", 777)),
			0o644))
		require.NoError(t, h.Download(t.Context(), m, m.Files[1], dir, func(int64) {}))
		require.Contains(t, s.Requests, "GET org/tiny/model.safetensors bytes=777-")
	})
	t.Run("damaged content is discarded", func(t *testing.T) {
		for _, f := range m.Files {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(filepath.Join(dir, f.Name+".part"), []byte("damage"), 0o644))
			require.ErrorContains(t, h.Download(t.Context(), m, f, dir, func(int64) {}), "digest")
			left := testutil.ReadDir(t, dir)
			require.Empty(t, left)
			require.NoError(t, h.Download(t.Context(), m, f, dir, func(int64) {}))
		}
	})
	t.Run("a file that is longer than the list says begins again", func(t *testing.T) {
		dir, moved := t.TempDir(), int64(0)
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json.part"), make([]byte, 9000), 0o644))
		require.NoError(t, h.Download(t.Context(), m, m.Files[0], dir, func(n int64) { moved += n }))
		require.Equal(t, int64(5000), moved)
	})
	t.Run("a server without ranges", func(t *testing.T) {
		plain := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Del("Range")
			s.ServeHTTP(w, r)
		}))
		defer plain.Close()
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "config.json.part"), []byte("old"), 0o644))
		without := &hub.Hub{URL: plain.URL, Client: plain.Client()}
		require.NoError(t, without.Download(t.Context(), m, m.Files[0], dir, func(int64) {}))
	})
}

func TestRefusals(t *testing.T) {
	s, h := serve(t, map[string]string{"config.json": "{}", "model.safetensors": "w"})
	of := func(repo, revision string) error {
		_, err := h.Model(t.Context(), hub.Ref{Repo: repo, Revision: revision})
		return err
	}
	require.ErrorContains(t, of("org/none", "main"), `no model hf://org/none with the revision "main"`)
	require.ErrorContains(t, of("org/tiny", "v9"), `the revision "v9"`)
	s.Token = "secret"
	require.ErrorContains(t, of("org/tiny", "main"), "set HF_TOKEN")
	h.Token = "wrong"
	require.ErrorContains(t, of("org/tiny", "main"), "accept the model's conditions")
	h.Token = "secret"
	m, err := h.Model(t.Context(), hub.Ref{Repo: "org/tiny", Revision: "main"})
	require.NoError(t, err)
	for _, f := range m.Files {
		require.NoError(t, h.Download(t.Context(), m, f, t.TempDir(), func(int64) {}))
	}

	for what, answer := range map[string]string{
		"did not respond like a model hub":   `<html>`,
		"outside of the model's directory":   `{"sha": "0123", "siblings": [{"rfilename": "../../.bashrc"}]}`,
		"is not a hexadecimal commit ID":     `{"sha": "../0123"}`,
		"did not respond like a model hub: ": `{}`,
	} {
		other := httptest.NewServer(
			http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(answer)) }))
		_, err := (&hub.Hub{URL: other.URL, Client: other.Client()}).Model(t.Context(),
			hub.Ref{Repo: "a/b", Revision: "main"})
		require.ErrorContains(t, err, what)
		other.Close()
	}
}

func TestChoose(t *testing.T) {
	for name, c := range map[string]struct {
		files    []string
		patterns []string
		want     []string
		err      string
	}{
		"safetensors": {
			files: []string{".gitattributes", "README.md", "config.json", "model-00001-of-00002.safetensors",
				"model-00002-of-00002.safetensors", "model.safetensors.index.json", "consolidated.safetensors", "pytorch_model.bin",
				"onnx/model.onnx", "onnx/config.json", "original/params.json", "tokenizer.json"},
			want: []string{"README.md", "config.json", "model.safetensors.index.json", "tokenizer.json",
				"model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"},
		},
		"modules of an embedding model": {
			files: []string{"1_Pooling/config.json", "modules.json", "model.safetensors"},
			want:  []string{"1_Pooling/config.json", "modules.json", "model.safetensors"},
		},
		"one GGUF file": {files: []string{"README.md", "m-Q8_0.gguf"}, want: []string{"README.md", "m-Q8_0.gguf"}},
		"several GGUF files": {files: []string{"m-Q4_K_M.gguf", "m-Q8_0.gguf"},
			err: "has 2 GGUF files: choose one with --include"},
		"a chosen GGUF file": {files: []string{"m-Q4_K_M.gguf", "m-Q8_0.gguf", "x/a.json"},
			patterns: []string{"*Q8_0.gguf", "*.json"},
			want:     []string{"m-Q8_0.gguf", "x/a.json"}},
		"a pattern without a file": {files: []string{"model.safetensors"}, patterns: []string{"*.gguf"},
			err: `"*.gguf" matches no file`},
		"an invalid pattern":   {files: []string{"model.safetensors"}, patterns: []string{"["}, err: "not a valid pattern"},
		"only pickled weights": {files: []string{"config.json", "pytorch_model.bin"}, err: "convert its weights"},
	} {
		t.Run(name, func(t *testing.T) {
			m := hub.Model{Repo: "org/tiny", Commit: "0123"}
			for _, file := range c.files {
				m.Files = append(m.Files, hub.File{Name: file, Size: 1})
			}
			chosen, err := m.Choose(c.patterns)
			if c.err != "" {
				require.ErrorContains(t, err, c.err)
				return
			}
			require.NoError(t, err)
			var names []string
			for _, f := range chosen {
				names = append(names, f.Name)
			}
			require.Equal(t, c.want, names)
		})
	}
}

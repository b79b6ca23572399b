package main_test

import (
	"bytes"
	"mime/multipart"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/engines/embedded/miniature"
	"anneal/internal/testutil"
)

// TestModelDownloadAndUpload checks that a model that is downloaded and uploaded again is
// unchanged. The violations of an invalid model are reported, and uploading the missing files makes
// it valid.
func TestModelDownloadAndUpload(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	user, files := s.user(), t.TempDir()
	at := func(name string) string { return filepath.Join(files, name) }
	user.dataset("codes", 60)
	user.job("codes", "codes", 1)
	user.until("/supervisedFineTuningJobs/codes", "state", "JOB_STATE_COMPLETED")
	require.NotEmpty(t, user.get("/models/codes")["precision"])
	trained := completionOf(user, "codes", "codes", "")

	t.Run("a base model, downloaded and uploaded again", func(t *testing.T) {
		s.run("model", "download", "anneal-base", "--dir", at("base")).ok(t)
		out := s.run("model", "create", "base-2", "--dir", at("base"), "--display-name", "Twin").ok(t)
		require.Contains(t, out, "READY")
		require.Contains(t, out, "837248")
		require.Equal(t, "BF16", user.get("/models/base-2")["precision"])
		require.Equal(t, completionOf(user, "first", "anneal-base", ""), completionOf(user, "second", "base-2", ""))
	})
	t.Run("an adapter, uploaded under another name and for the twin of its base", func(t *testing.T) {
		s.run("model", "download", "codes", "--dir", at("adapter")).ok(t)
		refused := s.run("model", "create", "again", "--dir", at("adapter"))
		require.Equal(t, 2, refused.code)
		require.Contains(t, refused.stderr, "give its base model with --base-model")
		require.Contains(t, s.run("model", "create", "again", "--dir", at("adapter"), "--base-model", "base-2").ok(t),
			"HF_PEFT_ADDON")
		again := user.get("/models/again")
		require.Equal(t, "accounts/default/models/base-2", again["baseModel"])
		require.Equal(t, user.get("/models/codes")["loraRank"], again["loraRank"])
		require.Equal(t, trained, completionOf(user, "again", "again", ""))
	})
	t.Run("a trained adapter names its base, has the tokenizer, and can be merged", func(t *testing.T) {
		config := testutil.ReadFile(t, at("adapter/adapter_config.json"))
		require.Contains(t, string(config), `"base_model_name_or_path": "anneal-base"`)
		for _, name := range []string{"tokenizer.json", "tokenizer_config.json"} {
			own := testutil.ReadFile(t, at("adapter/"+name))
			base := testutil.ReadFile(t, at("base/"+name))
			require.Equal(t, string(base), string(own))
		}
		s.run("model", "export", "codes", "--merge", "--hf", at("merged")).ok(t)
		require.Contains(t, s.run("model", "create", "merged", "--dir", at("merged")).ok(t), "HF_BASE_MODEL")
		require.Equal(t, trained, completionOf(user, "merged", "merged", ""))
		s.run("model", "export", "codes", "--gguf", at("lora.gguf")).ok(t)
		file := testutil.ReadFile(t, at("lora.gguf"))
		require.True(t, bytes.HasPrefix(file, []byte("GGUF")))
	})
	t.Run("a checkpoint of another family, in shards", func(t *testing.T) {
		require.NoError(t, os.Mkdir(at("qwen3"), 0o755))
		require.NoError(t, miniature.Write(at("qwen3"), "qwen3"))
		out := s.run("model", "create", "qwen3", "--dir", at("qwen3")).ok(t)
		require.Contains(t, out, "READY")
		require.NotContains(t, out, "cannot serve")
		require.NotEmpty(t, completionOf(user, "qwen3", "qwen3", ""))
		s.run("model", "prepare", "qwen3", "--precision", "FP8", "--watch").ok(t)
		require.NotEmpty(t, completionOf(user, "qwen3-eight", "qwen3", "FP8"))
		require.NotContains(t, s.run("model", "export", "qwen3", "--gguf", at("qwen3.gguf")).ok(t), ".anneal-export-")
		s.run("model", "export", "qwen3", "--dir", at("qwen3"), "--gguf", at("again.gguf")).ok(t)
		file := testutil.ReadFile(t, at("qwen3.gguf"))
		again := testutil.ReadFile(t, at("again.gguf"))
		require.True(t, bytes.HasPrefix(file, []byte("GGUF")))
		require.True(t, bytes.Equal(file, again))
		wrong := s.run("model", "export", "qwen3", "--gguf", at("wrong.gguf"), "--type", "q4_0")
		require.Equal(t, 2, wrong.code)
		require.Contains(t, wrong.stderr, "--type: must be f32, f16, bf16, q8_0, q5_k_m or q4_k_m")
		require.NoFileExists(t, at("wrong.gguf"))
	})
	t.Run("a model in use cannot be deleted", func(t *testing.T) {
		status, response, err := user.do(http.MethodDelete, "/models/base-2", nil)
		require.NoError(t, err)
		require.Equal(t, http.StatusBadRequest, status, "%v", response)
		require.Contains(t, response["message"], "accounts/default/models/again")
	})
	t.Run("a copy in another precision", func(t *testing.T) {
		require.Contains(t, s.run("model", "prepare", "base-2", "--precision", "FP16", "--watch").ok(t),
			"is available in FP16")
		s.run("model", "download", "base-2", "--precision", "FP16", "--dir", at("half")).ok(t)
		config := testutil.ReadFile(t, at("half/config.json"))
		require.Contains(t, string(config), `"torch_dtype": "float16"`)
		require.NotEmpty(t, completionOf(user, "half", "base-2", "FP16"))
		require.Contains(t, s.run("model", "prepare", "base-2", "--precision", "FP8", "--watch").ok(t), "is available in FP8")
		require.NotEmpty(t, completionOf(user, "eight", "base-2", "FP8"))
		none := s.run("model", "prepare", "base-2", "--precision", "NF4")
		require.Equal(t, 1, none.code)
		require.Contains(t, none.stderr, "choose one of BF16, FP16")
	})
	t.Run("all violations of an invalid model are reported, and fixing them suffices", func(t *testing.T) {
		broken := at("broken")
		require.NoError(t, os.CopyFS(broken, os.DirFS(at("base"))))
		require.NoError(t, os.Remove(filepath.Join(broken, "tokenizer.json")))
		require.NoError(t, os.Truncate(filepath.Join(broken, "model.safetensors"), 100_000))
		refused := s.run("model", "create", "mended", "--dir", broken)
		require.Equal(t, 1, refused.code)
		require.Contains(t, refused.stderr, "model.safetensors: has 95960 bytes of tensors")
		require.Contains(t, refused.stderr, "tokenizer.json: is missing")
		require.Equal(t, http.StatusNotFound, statusMessage(user, "/models/mended"), "an invalid model is not uploaded")

		user.must(http.MethodPost, "/models", object{"modelId": "mended", "model": object{"kind": "HF_BASE_MODEL"}})
		status, answer := user.uploadModel("mended", broken)
		require.Equal(t, http.StatusBadRequest, status)
		require.Contains(t, answer["message"], "tokenizer.json: is missing")
		require.Equal(t, "UPLOADING", user.get("/models/mended")["state"])
		for _, name := range []string{"tokenizer.json", "model.safetensors"} {
			require.NoError(t, os.MkdirAll(at("rest"), 0o755))
			require.NoError(t, os.Rename(at("base/"+name), at("rest/"+name)))
		}
		status, answer = user.uploadModel("mended", at("rest"))
		require.Equal(t, http.StatusOK, status, "%v", answer)
		require.Equal(t, "READY", answer["state"])
	})
	s.checkEvents()
}

// completionOf deploys a model and returns its response to one prompt.
func completionOf(user caller, deployment, model, precision string) string {
	user.t.Helper()
	settings := object{"baseModel": "accounts/default/models/" + model}
	if precision != "" {
		settings["precision"] = precision
	}
	user.deploy(deployment, settings)
	status, answer, err := user.complete("accounts/default/deployments/"+deployment,
		"Packing code for 15 pink chairs, customer Rosa")
	require.NoError(user.t, err)
	require.Equal(user.t, http.StatusOK, status, "%v", answer)
	user.must(http.MethodDelete, "/deployments/"+deployment+"?hard=true&ignoreChecks=true", nil)
	return textOf(user.t, answer)
}

func statusMessage(user caller, path string) int {
	user.t.Helper()
	status, _, err := user.do(http.MethodGet, path, nil)
	require.NoError(user.t, err)
	return status
}

// uploadModel sends the files of a directory in one form, and returns the status and the object of
// the response.
func (c caller) uploadModel(model, dir string) (status int, answer object) {
	c.t.Helper()
	var body bytes.Buffer
	w := multipart.NewWriter(&body)
	entries, err := os.ReadDir(dir)
	require.NoError(c.t, err)
	for _, entry := range entries {
		data := testutil.ReadFile(c.t, filepath.Join(dir, entry.Name()))
		part, err := w.CreateFormFile("file", entry.Name())
		require.NoError(c.t, err)
		_, err = part.Write(data)
		require.NoError(c.t, err)
	}
	require.NoError(c.t, w.Close())
	c.contentType = w.FormDataContentType()
	status, answer, err = c.do(http.MethodPost, "/models/"+model+":upload", &body)
	require.NoError(c.t, err)
	return status, answer
}

package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/request"
	"anneal/api/upload"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/domain/weights"
)

// tinyModel contains the files of the smallest valid model, whose type engines do not know.
var tinyModel = map[string]string{
	"config.json": `{"model_type": "tiny"}`,
	"model.safetensors": "\x40\x00\x00\x00\x00\x00\x00\x00" +
		fmt.Sprintf("%-64s", `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`) + "\x00\x00\x80\x3f",
	"tokenizer.json": `{"model": {"vocab": {"a": 0}}}`,
}

// validateModels validates uploaded models until the test ends, as the platform's task does.
func (s *harness) validateModels() {
	ctx, stop := context.WithCancel(context.Background())
	var following sync.WaitGroup
	following.Go(func() {
		for e, err := range s.log.Follow(ctx, "events.*.models.*", 0) {
			if err != nil || e.Type != "model.uploaded.v1" {
				continue
			}
			if s.world.WaitFor(ctx, e.Position) != nil {
				return
			}
			row, ok := s.world.View().Models.Get(e.Name)
			if !ok {
				continue
			}
			report, err := weights.Check(weights.Directory{Sizes: row.State.Files.Sizes,
				Open: func(name string, offset, length int64) (io.ReadCloser, error) {
					return s.store.Range(ctx, row.State.Files.Prefix+name, offset, length)
				}})
			if !s.continues(ctx, err) {
				return
			}
			var result domain.Command[domain.Model] = domain.AcceptModel{Upload: row.State.Upload,
				ModelMetadata: report.ModelMetadata}
			if len(report.Violations) > 0 {
				result = domain.RejectModel{Upload: row.State.Upload, Status: domain.StatusOf(report.Violations.Err()),
					Violations: report.Violations}
			}
			if !s.concludes(ctx, domain.Intend(domain.Models, e.Name, result)) {
				return
			}
		}
	})
	s.Cleanup(func() {
		stop()
		following.Wait()
	})
}

// uploadModel uploads the files of a model in one form.
func (s *harness) uploadModel(id, alias string, files map[string]string) response {
	s.Helper()
	var form bytes.Buffer
	w := multipart.NewWriter(&form)
	for _, name := range wire.SortedKeys(files) {
		part, err := w.CreateFormFile("file", name)
		require.NoError(s, err)
		_, err = io.WriteString(part, files[name])
		require.NoError(s, err)
	}
	require.NoError(s, w.Close())
	r := s.request(http.MethodPost, "/v1/accounts/acme/models/"+id+":upload", alias, &form)
	r.Header.Set("Content-Type", w.FormDataContentType())
	return s.send(r)
}

// get downloads from a signed URL.
func (s *harness) get(url string) response {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodGet, url, nil)
	require.NoError(s, err)
	return s.send(r)
}

func (s *harness) put(url, content string) response {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPut, url, strings.NewReader(content))
	require.NoError(s, err)
	return s.send(r)
}

// stored returns the files below a directory of the blob store that remain after unreferenced files
// are deleted.
func (s *harness) stored(dir string) []string {
	s.Helper()
	s.reconcile()
	files, err := s.store.Files(s.Context(), dir)
	require.NoError(s, err)
	return wire.SortedKeys(files.Sizes)
}

func TestModelUpload(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	a := s.uploadModel("m", "user", map[string]string{"config.json": "{", "tokenizer.json": tinyModel["tokenizer.json"]})
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "config.json: cannot be read")
	require.Contains(t, string(a.body), "model.safetensors: is missing")
	require.Equal(t, "UPLOADING", s.call("GET", "/v1/accounts/acme/models/m", "user", "").json(t)["state"])

	a = s.uploadModel("m", "user",
		map[string]string{"config.json": tinyModel["config.json"], "model.safetensors": tinyModel["model.safetensors"]})
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "READY", a.json(t)["state"])
	require.Equal(t, "1", a.json(t)["parameterCount"])
	require.Equal(t, "FP32", a.json(t)["precision"])
	require.Len(t, s.stored("models/acme/"), 3, "the files of the previous upload stay, and no others")

	a = s.uploadModel("m", "user", tinyModel)
	require.Equal(t, 400, a.status)
	require.Equal(t, "MODEL_READY", reasonOf(t, a))
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/models/m", "user", "").status)
	require.Empty(t, s.stored("models/acme/"))
}

func TestModelUploadBySignedURL(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	one := "/v1/accounts/acme/models/m"
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user",
		`{"modelId": "m", "model": {"displayName": "M"}}`).status)
	a := s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, "NOTHING_UPLOADED", reasonOf(t, a))
	sizes := []string{}
	for _, name := range wire.SortedKeys(tinyModel) {
		sizes = append(sizes, fmt.Sprintf("%q: %d", name, len(tinyModel[name])))
	}
	a = s.call("POST", one+":getUploadEndpoint", "user", `{"filenameToSize": {`+strings.Join(sizes, ", ")+`}}`)
	urls := a.json(t)["filenameToSignedUrls"].(map[string]any)
	for name, text := range tinyModel {
		require.Equal(t, 200, s.put(urls[name].(string), text).status)
	}
	a = s.call("POST", one+":validateUpload", "user", "")
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "READY", a.json(t)["state"])
	require.Empty(t, s.stored("arrivals/acme/"))
	require.Equal(t, 200, s.call("POST", one+":validateUpload", "user", "{}").status, "again succeeds")

	// the URL is still valid, but does not affect a READY model
	s.put(urls["config.json"].(string), `{"model_type": "evil"}`)
	a = s.call("GET", one+":getDownloadEndpoint", "user", "")
	for name, url := range a.json(t)["filenameToSignedUrls"].(map[string]any) {
		require.Equal(t, tinyModel[name], string(s.get(url.(string)).body))
	}
	require.Equal(t, 200, s.call("DELETE", one, "user", "").status)
	require.Empty(t, s.stored("arrivals/acme/"), "late files are deleted with the model")
}

func TestModelUploadsHaveLimits(t *testing.T) {
	s := newHarness(t, request.Limits{ModelFile: 100, ModelFiles: 2})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	one := "/v1/accounts/acme/models/m"
	for name, c := range map[string]struct {
		files   map[string]string
		status  int
		message string
	}{
		"a large file":   {map[string]string{"a": strings.Repeat("x", 101)}, 413, "100 bytes"},
		"many files":     {map[string]string{"a": "1", "b": "2", "c": "3"}, 400, "1 to 2 files"},
		"nothing":        {nil, 400, "the form is empty"},
		"a hidden file":  {map[string]string{".git": "1"}, 400, upload.FileNameRule},
		"an empty field": {map[string]string{"": "1"}, 400, "each field \\\"file\\\" must have a file name"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.uploadModel("m", "user", c.files)
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), c.message)
			require.Empty(t, s.stored("models/acme/"), "rejected files are not stored")
		})
	}
	for body, message := range map[string]string{
		`{"filenameToSize": {"a": 101}}`:                 "must be from 1 to 100 bytes",
		`{"filenameToSize": {"a": 1, "b": 1, "c": 1}}`:   "must have the names of 1 to 2 files",
		`{"filenameToSize": {"../a": 1, "b": 0}}`:        "from 1 to 100",
		`{"filenameToSize": {"deep/config.json": 1}}`:    upload.FileNameRule,
		`{"filenameToSize": {}}`:                         "must have the names of 1 to 2 files",
		`{"filenameToSize": {"a": 1}, "precision": "x"}`: "precision: is not a field of this object",
	} {
		a := s.call("POST", one+":getUploadEndpoint", "user", body)
		require.Equal(t, 400, a.status)
		require.Contains(t, string(a.body), message)
	}
}

// TestDirectoriesOfSpeechModels checks that the name of a file of a speech model may contain a
// directory.
func TestDirectoriesOfSpeechModels(t *testing.T) {
	s := newHarness(t, request.Limits{ModelFile: 100, ModelFiles: 9, Validation: 1}) // no task validates the upload
	a := s.call("POST", "/v1/accounts/acme/models", "user",
		`{"modelId": "ear", "model": {"kind": "SPEECH_MODEL", "speech": {"format": "pocketsphinx"}}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	one := "/v1/accounts/acme/models/ear"
	for body, message := range map[string]string{
		`{"filenameToSize": {"en-us/deep/mdef": 1}}`:     "separated by one slash",
		`{"filenameToSize": {"../mdef": 1}}`:             "separated by one slash",
		`{"filenameToSize": {"en-us/..": 1}}`:            "separated by one slash",
		`{"filenameToSize": {"en-us/": 1}}`:              "separated by one slash",
		`{"filenameToSize": {"/mdef": 1}}`:               "separated by one slash",
		`{"filenameToSize": {"en-us\\mdef": 1}}`:         upload.FileNameRule,
		`{"filenameToSize": {".en-us": 1}}`:              upload.FileNameRule,
		`{"filenameToSize": {"en-us": 1, "en-us/a": 1}}`: "is both a file and the directory of another file",
	} {
		a := s.call("POST", one+":getUploadEndpoint", "user", body)
		require.Equal(t, 400, a.status, body)
		require.Contains(t, string(a.body), message)
	}
	a = s.call("POST", one+":getUploadEndpoint", "user", `{"filenameToSize": {"en-us/mdef": 4, "en-us.lm.bin": 3}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	links := a.json(t)["filenameToSignedUrls"].(map[string]any)
	require.Len(t, links, 2)
	for name, content := range map[string]string{"en-us/mdef": "mdef", "en-us.lm.bin": "lm!"} {
		require.Equal(t, 200, s.put(links[name].(string), content).status)
	}
	a = s.call("POST", one+":validateUpload", "user", `{}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	row, _ := s.world.View().Models.Get("accounts/acme/models/ear")
	require.Equal(t, map[string]int64{"en-us/mdef": 4, "en-us.lm.bin": 3}, row.State.Files.Sizes)
	require.Len(t, s.stored(row.State.Files.Prefix), 2)
}

// TestDirectoriesOfModules checks that the modules of an embedding model, which are in numbered
// directories, can be uploaded.
func TestDirectoriesOfModules(t *testing.T) {
	s := newHarness(t, request.Limits{ModelFile: 100, ModelFiles: 9, Validation: 1}) // no task validates the upload
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "vectors"}`).status)
	send := func(name string) response {
		return s.call("POST", "/v1/accounts/acme/models/vectors:getUploadEndpoint", "user",
			`{"filenameToSize": {"`+name+`": 1}}`)
	}
	for _, name := range []string{"1_Pooling/config.json", "modules.json", "12_Dense/model.safetensors"} {
		require.Equal(t, 200, send(name).status, name)
	}
	for _, name := range []string{"onnx/model.onnx", "1_Pooling/deep/config.json", "1_/x", "_1/x", "1_Pooling/../x"} {
		a := send(name)
		require.Equal(t, 400, a.status, name)
		require.Contains(t, string(a.body), upload.FileNameRule)
	}
}

// TestConcurrentModelUploads checks that an upload is rejected while an earlier upload of the model
// is being validated, and leaves no files.
func TestConcurrentModelUploads(t *testing.T) {
	s := newHarness(t, request.Limits{Validation: 1})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	a := s.uploadModel("m", "user", tinyModel) // no task validates the upload
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "UPLOADING", a.json(t)["state"])
	require.Contains(t, string(a.body), "the upload is being validated")
	a = s.uploadModel("m", "user", tinyModel)
	require.Equal(t, "UPLOAD_PENDING", reasonOf(t, a))
	require.Len(t, s.stored("models/acme/"), 3)
}

func TestModelPermissions(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "admin",
		`{"modelId": "open", "model": {"public": true}}`).status)
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "own"}`).status)
	for _, id := range []string{"open", "own"} {
		require.Equal(t, 200, s.uploadModel(id, "user", tinyModel).status)
	}
	for _, c := range []struct {
		method, path, alias, body string
		status                    int
	}{
		{"POST", "acme/models", "user", `{"modelId": "x", "model": {"public": true}}`, 403},
		{"PATCH", "acme/models/own", "user", `{"public": true}`, 403},
		{"PATCH", "acme/models/own", "user", `{"displayName": "Mine"}`, 200},
		{"PATCH", "acme/models/own", "admin", `{"public": true}`, 200},
		{"PATCH", "acme/models/own", "user", `{"public": false}`, 200},
		{"GET", "acme/models/open:getDownloadEndpoint", "other", "", 200},
		{"GET", "acme/models/own:getDownloadEndpoint", "other", "", 403},
		{"GET", "acme/models/none:getDownloadEndpoint", "other", "", 403},
		{"GET", "acme/models/open:getDownloadEndpoint", "inference", "", 403},
		{"POST", "acme/models/open:prepare", "other", `{"precision": "BF16"}`, 403},
		{"POST", "acme/models/open:prepare", "inference", `{"precision": "BF16"}`, 403},
		{"POST", "acme/models/open:upload", "inference", "", 403},
		{"DELETE", "acme/models/open", "other", "", 403},
	} {
		a := s.call(c.method, "/v1/accounts/"+c.path, c.alias, c.body)
		require.Equal(t, c.status, a.status, "%s %s by %s: %s", c.method, c.path, c.alias, a.body)
	}
}

// TestAdapterDownload checks that the files of an adapter include those of the tokenizer of its base
// model that the adapter lacks, if the caller may read the base model.
func TestAdapterDownload(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	for id, public := range map[string]bool{"open": true, "own": false} {
		require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "admin",
			fmt.Sprintf(`{"modelId": %q, "model": {"public": %t}}`, id, public)).status)
		require.Equal(t, 200, s.uploadModel(id, "user", tinyModel).status)
	}
	adapter := func(id, base string, public bool, files ...string) {
		sizes := map[string]int64{}
		for _, name := range files {
			size := s.putFile("models/"+id+"/"+name, "of the adapter")
			sizes[name] = size
		}
		s.do(domain.Intend(domain.Models, domain.NewName("acme", "models", id),
			domain.RegisterModel{
				ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: "accounts/acme/models/" + base, Public: public},
				Files:     domain.Files{Prefix: "models/" + id + "/", Sizes: sizes}}))
	}
	weights := []string{"adapter_config.json", "adapter_model.safetensors"}
	adapter("plain", "own", false, weights...)
	adapter("with-tokenizer", "own", false, append(weights, "tokenizer.json")...)
	adapter("shared", "open", true, weights...)
	adapter("half-shared", "own", true, weights...)
	for _, c := range []struct {
		id, alias, tokenizer string // tokenizer is the content of tokenizer.json; "" for none
	}{
		{"plain", "user", tinyModel["tokenizer.json"]},
		{"with-tokenizer", "user", "of the adapter"},
		{"shared", "other", tinyModel["tokenizer.json"]},
		{"half-shared", "user", tinyModel["tokenizer.json"]},
		{"half-shared", "other", ""},
	} {
		a := s.call("GET", "/v1/accounts/acme/models/"+c.id+":getDownloadEndpoint", c.alias, "")
		require.Equal(t, 200, a.status, "%s", a.body)
		urls := a.json(t)["filenameToSignedUrls"].(map[string]any)
		for _, name := range weights {
			require.Contains(t, urls, name)
		}
		require.NotContains(t, urls, "config.json")
		require.NotContains(t, urls, "model.safetensors")
		url, ok := urls["tokenizer.json"].(string)
		require.Equal(t, c.tokenizer != "", ok, "%s by %s", c.id, c.alias)
		if ok {
			require.Equal(t, c.tokenizer, string(s.get(url).body))
		}
	}
}

func TestModelCopiesOverHTTP(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.validateModels()
	one, name := "/v1/accounts/acme/models/m", domain.Name("accounts/acme/models/m")
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	require.Equal(t, "MODEL_NOT_READY", reasonOf(t, s.call("POST", one+":prepare", "user", `{"precision": "BF16"}`)))
	require.Equal(t, 200, s.uploadModel("m", "user", tinyModel).status)
	a := s.call("POST", one+":prepare", "user", `{"precision": "BF16", "readMask": "*"}`)
	require.Equal(t, 200, a.status)
	require.JSONEq(t, "{}", string(a.body))
	require.Equal(t, "NOT_PREPARED", reasonOf(t, s.call("GET", one+":getDownloadEndpoint?precision=BF16", "user", "")))
	dir := "prepared/acme/m/e/"
	size := s.putFile(dir+"config.json", "{}")
	s.do(domain.Intend(domain.Models, name, domain.FinishCopy{Precision: "BF16", Attempt: 1, Files: domain.Files{
		Prefix: dir, Sizes: map[string]int64{"config.json": size}}}))
	copies := s.call("GET", one, "user", "").json(t)["copies"].([]any)
	require.Len(t, copies, 1)
	require.Equal(t, "READY", copies[0].(map[string]any)["state"])
	require.Equal(t, "2", copies[0].(map[string]any)["sizeBytes"])
	a = s.call("GET", one+":getDownloadEndpoint?precision=BF16", "user", "")
	require.Contains(t, string(a.body), dir+"config.json")

	a = s.call("POST", one+":prepare", "user", `{"precision": "NF4"}`)
	require.Equal(t, 501, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "choose one of BF16, FP16")
	a = s.call("POST", one+":prepare", "user", `{"precision": "FP7"}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "precision: must be one of BF16, FP16")
	require.Equal(t, 404, s.call("POST", "/v1/accounts/acme/models/none:prepare", "user", `{"precision": "BF16"}`).status)
	require.Equal(t, 200, s.call("DELETE", one, "user", "").status)
	require.Empty(t, s.stored("prepared/acme/"))
}

func TestCreateModelValidation(t *testing.T) {
	s := newHarness(t, request.Limits{})
	s.do(domain.Intend(domain.Models, "accounts/acme/models/addon", domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: "accounts/default/models/anneal-base"},
		Files:     domain.Files{Prefix: "x/", Sizes: map[string]int64{"a": 1}}}))
	for body, message := range map[string]string{
		`{"modelId": "M", "model": {"kind": "GGUF", "baseModel": "b", "displayName": "` + strings.Repeat("x", 256) +
			`"}}`: "modelId: must be 1 to 63",
		`{"modelId": "m", "model": {"kind": "HF_PEFT_ADDON"}}`: "model.baseModel: is required for " +
			"an addon",
		`{"modelId": "m", "model": {"baseModel": "accounts/acme/models/none"}}`: "model.baseModel: " +
			"accounts/acme/models/none is not a model that accounts/acme may use",
		`{"modelId": "m", "model": {"baseModel": "accounts/other/models/private"}}`: "model.baseModel: " +
			"accounts/other/models/private is not a model that",
		`{"modelId": "m", "model": {"baseModel": "accounts/acme/models/addon"}}`: "model.baseModel: " +
			"accounts/acme/models/addon is an addon itself",
		`{"modelId": "m", "model": {"weights": 1}}`: "model.weights: is not a field of " +
			"this object",
	} {
		a := s.call("POST", "/v1/accounts/acme/models", "user", body)
		require.Equal(t, 400, a.status, "%s", body)
		require.Contains(t, string(a.body), message)
	}
	a := s.call("POST", "/v1/accounts/acme/models", "user",
		`{"modelId": "M", "model": {"kind": "GGUF", "baseModel": "b", "displayName": "`+strings.Repeat("x", 256)+`"}}`)
	for _, field := range []string{"modelId", "model.kind", "model.baseModel", "model.displayName"} {
		require.Contains(t, string(a.body), `"field":"`+field+`"`, "all faults at once")
	}
	a = s.call("POST", "/v1/accounts/acme/models", "user",
		`{"modelId": "m", "model": {"baseModel": "accounts/default/models/anneal-base"}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "HF_PEFT_ADDON", a.json(t)["kind"])
	require.Equal(t, 409, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
}

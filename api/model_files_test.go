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

	"anneal/api/wire"
	"anneal/domain"
	"anneal/domain/weights"
)

// Files of the smallest model that is whole, of a type that nobody knows.
var tinyModel = map[string]string{
	"config.json":       `{"model_type": "tiny"}`,
	"model.safetensors": "\x40\x00\x00\x00\x00\x00\x00\x00" + fmt.Sprintf("%-64s", `{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}`) + "\x00\x00\x80\x3f",
	"tokenizer.json":    `{"model": {"vocab": {"a": 0}}}`,
}

// judgeModels checks uploaded models, as a task of the platform does, until the
// test ends.
func (s *stage) judgeModels() {
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
			report, err := weights.Check(weights.Folder{Sizes: row.State.Files.Sizes, Open: func(name string, offset, length int64) (io.ReadCloser, error) {
				return s.store.Range(ctx, row.State.Files.Folder+name, offset, length)
			}})
			if !s.fine(ctx, err) {
				return
			}
			var verdict domain.Command[domain.Model] = domain.AcceptModel{Upload: row.State.Upload, ModelFacts: report.ModelFacts}
			if len(report.Violations) > 0 {
				verdict = domain.RejectModel{Upload: row.State.Upload, Status: domain.StatusOf(report.Violations.Err()), Violations: report.Violations}
			}
			if !s.fine(ctx, s.carryOut(ctx, domain.Intend(domain.Models, e.Name, verdict))) {
				return
			}
		}
	})
	s.Cleanup(func() {
		stop()
		following.Wait()
	})
}

// uploadModel sends files in one form.
func (s *stage) uploadModel(id, alias string, files map[string]string) answer {
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

func (s *stage) put(url, content string) answer {
	s.Helper()
	r, err := http.NewRequestWithContext(s.Context(), http.MethodPut, url, strings.NewReader(content))
	require.NoError(s, err)
	return s.send(r)
}

// stored is every file below a folder of the store that something refers to.
func (s *stage) stored(folder string) []string {
	s.Helper()
	s.reconcile()
	files, err := s.store.Files(s.Context(), folder)
	require.NoError(s, err)
	return wire.SortedKeys(files.Sizes)
}

func TestModelUpload(t *testing.T) {
	s := newStage(t, Limits{})
	s.judgeModels()
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	a := s.uploadModel("m", "user", map[string]string{"config.json": "{", "tokenizer.json": tinyModel["tokenizer.json"]})
	require.Equal(t, 400, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "config.json: cannot be read")
	require.Contains(t, string(a.body), "model.safetensors: is missing")
	require.Equal(t, "UPLOADING", s.call("GET", "/v1/accounts/acme/models/m", "user", "").json(t)["state"])

	a = s.uploadModel("m", "user", map[string]string{"config.json": tinyModel["config.json"], "model.safetensors": tinyModel["model.safetensors"]})
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "READY", a.json(t)["state"])
	require.Equal(t, "1", a.json(t)["parameterCount"])
	require.Equal(t, "FP32", a.json(t)["precision"])
	require.Len(t, s.stored("models/acme/"), 3, "the files of the upload before stay, and nothing else")

	a = s.uploadModel("m", "user", tinyModel)
	require.Equal(t, 400, a.status)
	require.Equal(t, "MODEL_READY", reasonOf(t, a))
	require.Equal(t, 200, s.call("DELETE", "/v1/accounts/acme/models/m", "user", "").status)
	require.Empty(t, s.stored("models/acme/"))
}

func TestModelUploadBySignedURL(t *testing.T) {
	s := newStage(t, Limits{})
	s.judgeModels()
	one := "/v1/accounts/acme/models/m"
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m", "model": {"displayName": "M"}}`).status)
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
	require.Equal(t, 200, s.call("POST", one+":validateUpload", "user", "{}").status, "again is no fault")

	s.put(urls["config.json"].(string), `{"model_type": "evil"}`) // the URL is still good, but reaches nothing that is READY
	a = s.call("GET", one+":getDownloadEndpoint", "user", "")
	for name, url := range a.json(t)["filenameToSignedUrls"].(map[string]any) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url.(string), nil)
		require.NoError(t, err)
		require.Equal(t, tinyModel[name], string(s.send(r).body))
	}
	require.Equal(t, 200, s.call("DELETE", one, "user", "").status)
	require.Empty(t, s.stored("arrivals/acme/"), "what came late goes with the model")
}

func TestModelUploadsHaveLimits(t *testing.T) {
	s := newStage(t, Limits{ModelFile: 100, ModelFiles: 2})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	one := "/v1/accounts/acme/models/m"
	for name, c := range map[string]struct {
		files  map[string]string
		status int
		says   string
	}{
		"a large file":   {map[string]string{"a": strings.Repeat("x", 101)}, 413, "100 bytes"},
		"many files":     {map[string]string{"a": "1", "b": "2", "c": "3"}, 400, "1 to 2 files"},
		"nothing":        {nil, 400, "the form is empty"},
		"a hidden file":  {map[string]string{".git": "1"}, 400, fileNameRule},
		"an empty field": {map[string]string{"": "1"}, 400, "must carry the name of its file"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.uploadModel("m", "user", c.files)
			require.Equal(t, c.status, a.status, "%s", a.body)
			require.Contains(t, string(a.body), c.says)
			require.Empty(t, s.stored("models/acme/"), "what was refused is not kept")
		})
	}
	for body, says := range map[string]string{
		`{"filenameToSize": {"a": 101}}`:                 "must be from 1 to 100 bytes",
		`{"filenameToSize": {"a": 1, "b": 1, "c": 1}}`:   "must name 1 to 2 files",
		`{"filenameToSize": {"../a": 1, "b": 0}}`:        "from 1 to 100",
		`{"filenameToSize": {"deep/config.json": 1}}`:    fileNameRule,
		`{"filenameToSize": {}}`:                         "must name 1 to 2 files",
		`{"filenameToSize": {"a": 1}, "precision": "x"}`: "precision: is not a field here",
	} {
		a := s.call("POST", one+":getUploadEndpoint", "user", body)
		require.Equal(t, 400, a.status)
		require.Contains(t, string(a.body), says)
	}
}

// Files of a speech model may lie in a folder, and keep it.
func TestFoldersOfSpeechModels(t *testing.T) {
	s := newStage(t, Limits{ModelFile: 100, ModelFiles: 9, Verdict: 1}) // nobody judges it here
	a := s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "ear", "model": {"kind": "SPEECH_MODEL", "speech": {"format": "pocketsphinx"}}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	one := "/v1/accounts/acme/models/ear"
	for body, says := range map[string]string{
		`{"filenameToSize": {"en-us/deep/mdef": 1}}`:     "with one slash between",
		`{"filenameToSize": {"../mdef": 1}}`:             "with one slash between",
		`{"filenameToSize": {"en-us/..": 1}}`:            "with one slash between",
		`{"filenameToSize": {"en-us/": 1}}`:              "with one slash between",
		`{"filenameToSize": {"/mdef": 1}}`:               "with one slash between",
		`{"filenameToSize": {"en-us\\mdef": 1}}`:         fileNameRule,
		`{"filenameToSize": {".en-us": 1}}`:              fileNameRule,
		`{"filenameToSize": {"en-us": 1, "en-us/a": 1}}`: "is a file, and a folder of others",
	} {
		a := s.call("POST", one+":getUploadEndpoint", "user", body)
		require.Equal(t, 400, a.status, body)
		require.Contains(t, string(a.body), says)
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
	require.Len(t, s.stored(row.State.Files.Folder), 2)
}

// Two uploads at once: one is judged, the other is told.
func TestModelUploadWhileOneIsJudged(t *testing.T) {
	s := newStage(t, Limits{Verdict: 1})
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	a := s.uploadModel("m", "user", tinyModel) // nobody judges it here
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "UPLOADING", a.json(t)["state"])
	require.Contains(t, string(a.body), "the upload is being validated")
	a = s.uploadModel("m", "user", tinyModel)
	require.Equal(t, "UPLOAD_PENDING", reasonOf(t, a))
	require.Len(t, s.stored("models/acme/"), 3)
}

func TestWhoMayDoWhatWithModels(t *testing.T) {
	s := newStage(t, Limits{})
	s.judgeModels()
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "admin", `{"modelId": "open", "model": {"public": true}}`).status)
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

func TestModelCopiesOverHTTP(t *testing.T) {
	s := newStage(t, Limits{})
	s.judgeModels()
	one, name := "/v1/accounts/acme/models/m", domain.Name("accounts/acme/models/m")
	require.Equal(t, 200, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
	require.Equal(t, "MODEL_NOT_READY", reasonOf(t, s.call("POST", one+":prepare", "user", `{"precision": "BF16"}`)))
	require.Equal(t, 200, s.uploadModel("m", "user", tinyModel).status)
	a := s.call("POST", one+":prepare", "user", `{"precision": "BF16", "readMask": "*"}`)
	require.Equal(t, 200, a.status)
	require.JSONEq(t, "{}", string(a.body))
	require.Equal(t, "NOT_PREPARED", reasonOf(t, s.call("GET", one+":getDownloadEndpoint?precision=BF16", "user", "")))
	folder := "prepared/acme/m/e/"
	size, err := s.store.Put(t.Context(), folder+"config.json", strings.NewReader("{}"))
	require.NoError(t, err)
	s.do(domain.Intend(domain.Models, name, domain.Command[domain.Model](domain.FinishCopy{Precision: "BF16", Attempt: 1,
		Files: domain.Files{Folder: folder, Sizes: map[string]int64{"config.json": size}}})))
	copies := s.call("GET", one, "user", "").json(t)["copies"].([]any)
	require.Len(t, copies, 1)
	require.Equal(t, "READY", copies[0].(map[string]any)["state"])
	require.Equal(t, "2", copies[0].(map[string]any)["sizeBytes"])
	a = s.call("GET", one+":getDownloadEndpoint?precision=BF16", "user", "")
	require.Contains(t, string(a.body), folder+"config.json")

	a = s.call("POST", one+":prepare", "user", `{"precision": "NF4"}`)
	require.Equal(t, 501, a.status, "%s", a.body)
	require.Contains(t, string(a.body), "ask for one of BF16, FP16")
	a = s.call("POST", one+":prepare", "user", `{"precision": "FP7"}`)
	require.Equal(t, 400, a.status)
	require.Contains(t, string(a.body), "precision: must be one of BF16, FP16")
	require.Equal(t, 404, s.call("POST", "/v1/accounts/acme/models/none:prepare", "user", `{"precision": "BF16"}`).status)
	require.Equal(t, 200, s.call("DELETE", one, "user", "").status)
	require.Empty(t, s.stored("prepared/acme/"))
}

func TestModelsAreCreatedRight(t *testing.T) {
	s := newStage(t, Limits{})
	s.do(domain.Intend(domain.Models, "accounts/acme/models/addon", domain.Command[domain.Model](domain.RegisterModel{
		ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: "accounts/default/models/anneal-base"}, Files: domain.Files{Folder: "x/", Sizes: map[string]int64{"a": 1}}})))
	for body, says := range map[string]string{
		`{"modelId": "M", "model": {"kind": "GGUF", "baseModel": "b", "displayName": "` + strings.Repeat("x", 256) + `"}}`: "modelId: must be 1 to 63",
		`{"modelId": "m", "model": {"kind": "HF_PEFT_ADDON"}}`:                                                             "model.baseModel: is required for an addon",
		`{"modelId": "m", "model": {"baseModel": "accounts/acme/models/none"}}`:                                            "model.baseModel: names no model that accounts/acme may use",
		`{"modelId": "m", "model": {"baseModel": "accounts/other/models/private"}}`:                                        "model.baseModel: names no model",
		`{"modelId": "m", "model": {"baseModel": "accounts/acme/models/addon"}}`:                                           "model.baseModel: is an addon itself",
		`{"modelId": "m", "model": {"weights": 1}}`:                                                                        "model.weights: is not a field here",
	} {
		a := s.call("POST", "/v1/accounts/acme/models", "user", body)
		require.Equal(t, 400, a.status, "%s", body)
		require.Contains(t, string(a.body), says)
	}
	a := s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "M", "model": {"kind": "GGUF", "baseModel": "b", "displayName": "`+strings.Repeat("x", 256)+`"}}`)
	for _, field := range []string{"modelId", "model.kind", "model.baseModel", "model.displayName"} {
		require.Contains(t, string(a.body), `"field":"`+field+`"`, "all faults at once")
	}
	a = s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m", "model": {"baseModel": "accounts/default/models/anneal-base"}}`)
	require.Equal(t, 200, a.status, "%s", a.body)
	require.Equal(t, "HF_PEFT_ADDON", a.json(t)["kind"])
	require.Equal(t, 409, s.call("POST", "/v1/accounts/acme/models", "user", `{"modelId": "m"}`).status)
}

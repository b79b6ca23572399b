package tasks_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines/embedded"
	"anneal/engines/embedded/llama"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/internal/testutil"
	"anneal/workers/tasks"
)

// shipped returns the files of the shipped model.
func shipped(t *testing.T) map[string][]byte {
	dir, files := t.TempDir(), map[string][]byte{}
	require.NoError(t, embedded.WriteBase(dir))
	entries := testutil.ReadDir(t, dir)
	for _, entry := range entries {
		files[entry.Name()] = testutil.ReadFile(t, filepath.Join(dir, entry.Name()))
	}
	return files
}

// model records a command on a model and returns its event.
func (b *harness) model(id string, cmd domain.Command[domain.Model]) eventlog.Event {
	b.Helper()
	return do(b, domain.Models, id, cmd)
}

func (b *harness) modelState(id string) domain.Model {
	b.Helper()
	return stateOf(b, domain.Models, id)
}

// upload stores files and records them as an upload of a model.
func (b *harness) upload(id string, n int, files map[string][]byte) eventlog.Event {
	b.Helper()
	stored := domain.Files{Prefix: fmt.Sprintf("models/acme/%s/%d/", id, n), Sizes: map[string]int64{}}
	for name, data := range files {
		size := b.put(stored.Prefix+name, bytes.NewReader(data))
		stored.Sizes[name] = size
	}
	return b.model(id, domain.UploadModel{Upload: n, Files: stored})
}

func (b *harness) validator() tasks.ModelValidator {
	return tasks.ModelValidator{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now, Supports: embedded.Supports}
}

func (b *harness) copier() tasks.ModelCopier {
	return tasks.ModelCopier{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now}
}

// ready creates a READY model with the files.
func (b *harness) ready(id string, spec domain.ModelSpec, files map[string][]byte) domain.Model {
	b.Helper()
	b.model(id, domain.CreateModel{ModelSpec: spec})
	require.NoError(b, b.validator().Validate(b.Context(), b.upload(id, 1, files)))
	m := b.modelState(id)
	require.Equal(b, domain.ModelReady, m.State, m.Status.Message)
	return m
}

var whole = domain.ModelSpec{Kind: domain.BaseModel}

func TestModelsAreValidated(t *testing.T) {
	b := newHarness(t)
	b.model("m", domain.CreateModel{ModelSpec: whole})
	files := shipped(t)
	config := files["config.json"]
	delete(files, "config.json")
	first := b.upload("m", 1, files)
	require.NoError(t, b.validator().Validate(t.Context(), first))
	require.NoError(t, b.validator().Validate(t.Context(), first), "a repetition changes nothing")
	m := b.modelState("m")
	require.Equal(t, domain.ModelUploading, m.State)
	require.Equal(t, "config.json: is missing: correct these files and upload them again",
		m.Status.Message)
	require.Equal(t, []domain.Violation{{Field: "config.json", Description: "is missing"}}, m.Violations)

	files["config.json"] = config
	require.NoError(t, b.validator().Validate(t.Context(), b.upload("m", 2, files)))
	m = b.modelState("m")
	require.Equal(t, domain.ModelReady, m.State)
	require.Equal(t, domain.Status{Code: "OK"}, m.Status)
	require.Equal(t, domain.ModelMetadata{ModelType: "llama", ParameterCount: 837_248, ContextLength: 512,
		Precision: "BF16"}, m.ModelMetadata)
}

// TestModelsForOtherEngines checks that a model that the embedded engine cannot serve is accepted,
// with a note.
func TestModelsForOtherEngines(t *testing.T) {
	b := newHarness(t)
	files := shipped(t)
	files["tokenizer.json"] = []byte(`{"model": {"type": "Unigram", "vocab": [["a", 0]]}}`)
	m := b.ready("m", whole, files)
	require.Equal(t, "OK", m.Status.Code)
	require.Contains(t, m.Status.Message, "a node with another engine may be able to: tokenizer.json")
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"llama"`), []byte(`"mamba"`), 1)
	m = b.ready("n", whole, files)
	require.Equal(t, "mamba", m.ModelType)
	require.Contains(t, m.Status.Message, "runs llama, mistral, qwen2 and qwen3")
}

// TestNotesAreLimited checks that a file that only engines read may have any size, that the control
// plane does not read such a file when it is large, and that the text that a note quotes from files
// is limited.
func TestNotesAreLimited(t *testing.T) {
	b := newHarness(t)
	files := shipped(t)
	files["chat_template.jinja"] = make([]byte, 64<<20+1)
	m := b.ready("m", whole, files)
	require.Contains(t, m.Status.Message, "chat_template.jinja has 67108865 bytes: at most 67108864 are allowed")
	delete(files, "chat_template.jinja")
	files["config.json"] = bytes.Replace(files["config.json"], []byte(`"silu"`),
		[]byte(`"`+strings.Repeat("x", 900_000)+`"`), 1)
	m = b.ready("n", whole, files)
	require.Contains(t, m.Status.Message, "a node with another engine may")
	require.Less(t, len(m.Status.Message), 1200)
}

// adapter returns the files of an adapter on the shipped model.
func adapter(t *testing.T) map[string][]byte {
	base, dir := t.TempDir(), t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	config, err := llama.ReadConfig(base)
	require.NoError(t, err)
	a := llama.NewAdapter(config, 4, 8, []llama.Module{llama.Query})
	require.NoError(t, a.Save(dir, 0))
	files := map[string][]byte{}
	for _, name := range []string{"adapter_config.json", "adapter_model.safetensors"} {
		files[name] = testutil.ReadFile(t, filepath.Join(dir, name))
	}
	return files
}

func TestAddonsAreComparedWithTheirBase(t *testing.T) {
	b := newHarness(t)
	b.ready("base", whole, shipped(t))
	spec := domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: string(named(domain.Models, "base"))}
	m := b.ready("addon", spec, adapter(t))
	require.Equal(t, 4, m.LoraRank)
	require.EqualValues(t, 837_248, m.ParameterCount, "of the base")
	require.Empty(t, m.Status.Message)

	small := shipped(t)
	small["config.json"] = bytes.Replace(small["config.json"], []byte(`"num_hidden_layers": 4`),
		[]byte(`"num_hidden_layers": 3`), 1)
	b.ready("small", whole, small)
	b.model("misfit", domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(named(domain.Models, "small"))}})
	require.NoError(t, b.validator().Validate(t.Context(), b.upload("misfit", 1, adapter(t))))
	require.Contains(t, b.modelState("misfit").Status.Message,
		"for a layer that the base model, with 3 layers, does not have")

	b.model("orphan", domain.CreateModel{ModelSpec: domain.ModelSpec{Kind: domain.PEFTAddon,
		BaseModel: string(named(domain.Models, "gone"))}})
	require.NoError(t, b.validator().Validate(t.Context(), b.upload("orphan", 1, adapter(t))))
	require.Contains(t, b.modelState("orphan").Status.Message,
		"baseModel: the base model accounts/acme/models/gone does not exist")
}

func (b *harness) file(files domain.Files, name string) []byte {
	b.Helper()
	content, err := b.blobs.Get(b.Context(), files.Prefix+name)
	require.NoError(b, err)
	defer content.Close()
	data := testutil.ReadAll(b, content)
	require.Len(b, data, int(files.Sizes[name]))
	return data
}

func TestCopiesAreWritten(t *testing.T) {
	b := newHarness(t)
	m := b.ready("m", whole, shipped(t))
	asked := b.model("m", domain.PrepareModel{Precision: "FP16"})
	require.NoError(t, b.copier().Copy(t.Context(), asked))
	require.NoError(t, b.copier().Copy(t.Context(), asked), "a repetition changes nothing")
	made := b.modelState("m").Copies["FP16"]
	require.Equal(t, domain.CopyReady, made.State, made.Status.Message)
	require.Len(t, made.Files.Sizes, len(m.Files.Sizes))

	dir := t.TempDir()
	for name := range made.Files.Sizes {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b.file(made.Files, name), 0o644))
	}
	got := mustLoad(t, dir)
	require.Equal(t, "float16", got.Config.TorchDType)
	base := t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	want := mustLoad(t, base)
	for i, v := range want.Flat() {
		if off := math.Abs(float64(v - got.Flat()[i])); off > math.Abs(float64(v))*0x1p-11+0x1p-25 {
			t.Fatalf("number %d is off by %g", i, off)
		}
	}
	require.NoError(t, b.blobs.DeletePrefix(t.Context(), m.Files.Prefix))
	require.Equal(t, shipped(t)["tokenizer.json"], b.file(made.Files, "tokenizer.json"),
		"the copy does not depend on the original")
}

// TestCopiesInEightBits checks that the error of a number in 8 bits is at most a sixteenth of the
// number, or negligible for a number that is small compared to the maximum of its row.
func TestCopiesInEightBits(t *testing.T) {
	b := newHarness(t)
	m := b.ready("m", whole, shipped(t))
	require.NoError(t, b.copier().Copy(t.Context(), b.model("m", domain.PrepareModel{Precision: "FP8"})))
	made := b.modelState("m").Copies["FP8"]
	require.Equal(t, domain.CopyReady, made.State, made.Status.Message)
	require.Less(t, made.Files.Sizes["model.safetensors"], m.Files.Sizes["model.safetensors"]*6/10)
	dir := t.TempDir()
	for name := range made.Files.Sizes {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b.file(made.Files, name), 0o644))
	}
	require.NoError(t, embedded.Supports(dir))
	got := mustLoad(t, dir)
	base := t.TempDir()
	require.NoError(t, embedded.WriteBase(base))
	want := mustLoad(t, base)
	require.Equal(t, want.Norm, got.Norm)
	require.Equal(t, want.Embed.Data, got.Embed.Data)
	for i := range want.Layers {
		for m := range llama.Modules {
			from, to := want.Layers[i].Matrix(m), got.Layers[i].Matrix(m)
			for r := range from.Rows {
				largest := 0.0
				for _, v := range from.Row(r) {
					largest = max(largest, math.Abs(float64(v)))
				}
				for c, v := range from.Row(r) {
					if off := math.Abs(float64(v - to.Row(r)[c])); off > math.Abs(float64(v))/16+largest/448*0x1p-9 {
						t.Fatalf("layer %d, %s [%d %d]: %g became %g", i, m, r, c, v, to.Row(r)[c])
					}
				}
			}
		}
	}
	spec := domain.ModelSpec{Kind: domain.PEFTAddon, BaseModel: string(named(domain.Models, "m"))}
	b.ready("addon", spec, adapter(t))
	require.NoError(t, b.copier().Copy(t.Context(), b.model("addon", domain.PrepareModel{Precision: "FP8"})))
	require.Contains(t, b.modelState("addon").Copies["FP8"].Status.Message, "no weight file has projections")
}

func TestImpossibleCopies(t *testing.T) {
	b := newHarness(t)
	files := shipped(t)
	weights := bytes.Clone(files["model.safetensors"])
	start := 8 + binary.LittleEndian.Uint64(weights)
	binary.LittleEndian.PutUint16(weights[start:], 0x4f00) // 2^31 as a BF16 number
	files["model.safetensors"] = weights
	b.ready("m", whole, files)
	asked := b.model("m", domain.PrepareModel{Precision: "FP16"})
	require.NoError(t, b.copier().Copy(t.Context(), asked))
	made := b.modelState("m").Copies["FP16"]
	require.Equal(t, domain.CopyFailed, made.State)
	require.Contains(t, made.Status.Message, "model.safetensors: the tensor")
	require.Contains(t, made.Status.Message, "too large for F16: prepare the model in BF16 instead")
	require.Empty(t, b.left("prepared/acme/"), "an unusable copy is not kept")
}

// TestCopiesOfDeletedModels checks that the copy of a deleted model is removed.
func TestCopiesOfDeletedModels(t *testing.T) {
	b := newHarness(t)
	b.ready("m", whole, shipped(t))
	asked := b.model("m", domain.PrepareModel{Precision: "FP16"})
	copier := b.copier()
	copier.Log = deleting{b.log, func() {
		b.model("m", domain.RequestDeletion(domain.Models))
		b.model("m",
			domain.DeleteModel{})
	}}
	require.NoError(t, copier.Copy(t.Context(), asked))
	require.False(t, b.modelState("m").Exists())
	require.Empty(t, b.left("prepared/acme/"))
}

// deleting is a log that calls a function right before its first write.
type deleting struct {
	eventlog.Log
	first func()
}

func (d deleting) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	if strings.Contains(w.Type, "prepared") {
		d.first()
	}
	return d.Log.Append(ctx, w)
}

// TestModelTasksOnTheRouter checks that the validation and the copy of a model run on the router of
// an embedded server, and that a missing file is reported.
func TestModelTasksOnTheRouter(t *testing.T) {
	b := routedHarness(t, func(b *harness, r *pubsub.Router) error {
		return errors.Join(b.validator().Handle(r), b.copier().Handle(r))
	})
	b.model("m", domain.CreateModel{ModelSpec: whole})
	b.upload("m", 1, shipped(t))
	m := until(b, domain.Models, "m", func(m domain.Model) bool { return m.State == domain.ModelReady })
	b.model("m", domain.PrepareModel{Precision: "FP16"})
	until(b, domain.Models, "m", func(m domain.Model) bool { return m.Copies["FP16"].State == domain.CopyReady })

	lost := domain.Files{Prefix: "models/acme/lost/", Sizes: m.Files.Sizes}
	b.model("n", domain.CreateModel{ModelSpec: whole})
	b.model("n", domain.UploadModel{Upload: 1, Files: lost})
	m = until(b, domain.Models, "n", func(m domain.Model) bool { return m.Validated == 1 })
	require.Equal(t, "INTERNAL", m.Status.Code)
	require.Contains(t, m.Status.Message, "could not be validated")
}

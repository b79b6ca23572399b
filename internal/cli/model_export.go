package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strconv"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/domain/weights"
	"anneal/engines/embedded/gguf"
	"anneal/engines/embedded/llama"
	"anneal/internal/usage"
)

// An export is one run of `anneal model export`. The command converts files that its user may
// download. So the server needs no jobs, no storage and no permission for exports: any user
// who may download an adapter and its base model can merge them.
type export struct {
	gguf, hf     string // paths to write, of which one is set: a GGUF file, or a directory in the Hugging Face format
	kind         string // name of the GGUF file type that the user wants; "" for the default
	merge        bool
	dir, baseDir string // local directories with the model and its base model; "" exports a model of the server

	as      gguf.FileType
	name    string
	adapter bool // the files in dir are those of an adapter
}

func modelExport() *cobra.Command {
	var e export
	c := &cobra.Command{Use: "export ID --gguf FILE | --hf DIR --merge",
		Short: "Export a model or an adapter as a GGUF file, or merge an adapter into its base model", Args: arguments(1, 1),
		Long: "Export a model or an adapter as a GGUF file for llama.cpp, or merge an adapter into its base model.\n\n" +
			"An adapter is exported as a LoRA file for the --lora flag of llama.cpp's programs. With --merge, the command " +
			"downloads the base model too, and writes one model that has the adapter's weights added to it.\n\n" +
			"q4_k_m and q5_k_m store the output matrix (lm_head) in Q6_K, and also attn_v and ffn_down in the first and the " +
			"last eighth of the layers and in every third layer between. A matrix whose rows are not a multiple of " +
			"256 values is stored in Q5_0, Q5_1 or Q8_0 instead.",
		Example: "  anneal model export polite --gguf polite-lora.gguf\n" +
			"  anneal model export polite --merge --gguf polite.gguf --type q4_k_m\n" +
			"  anneal model export polite --merge --hf ./polite-merged\n" +
			"  anneal model export tiny --dir ./tiny-llama --gguf tiny.gguf",
		RunE: func(c *cobra.Command, args []string) error {
			if err := e.check(c); err != nil {
				return err
			}
			e.name = id(args[0])
			target := cmp.Or(e.gguf, e.hf)
			work, err := os.MkdirTemp(filepath.Dir(target), ".anneal-export-")
			if err != nil {
				return err
			}
			defer os.RemoveAll(work)
			if err := e.openFiles(c, args[0], work); err != nil {
				return err
			}
			if err := e.write(c, work); err != nil {
				return diskFull(err, target)
			}
			return printDone(c, "model", args[0], "exported as "+target)
		}}
	f := c.Flags()
	f.StringVar(&e.gguf, "gguf", "", "GGUF `FILE` to write, which must not exist")
	f.StringVar(&e.hf, "hf", "", "`DIRECTORY` to write in the layout of Hugging Face, which must not exist (with --merge)")
	f.BoolVar(&e.merge, "merge", false, "merge an adapter into its base model")
	f.StringVar(&e.kind, "type", "", "`TYPE` of the matrices in a GGUF file: "+gguf.FileTypes()+
		" (default f16, or f32 for an adapter; vectors are f32)")
	f.StringVar(&e.dir, "dir", "", "directory with a model or an adapter to export, instead of a model of the server")
	f.StringVar(&e.baseDir, "base-dir", "", "directory with the base model of the adapter in --dir")
	return c
}

// check returns a usage error if the flags exclude each other or a flag is missing.
func (e *export) check(c *cobra.Command) (err error) {
	switch {
	case e.gguf == "" && e.hf == "":
		return usage.Errorf("--gguf FILE, or --hf DIR with --merge, is required: where the exported model is written")
	case e.gguf != "" && e.hf != "":
		return usage.Errorf("give either --gguf or --hf")
	case e.hf != "" && !e.merge:
		return usage.Errorf("--hf requires --merge: to write the files of a model unchanged, use `anneal model " +
			"download`")
	case e.hf != "" && e.kind != "":
		return usage.Errorf("--type requires --gguf: a directory of --hf has the number types of the base model")
	case e.baseDir != "" && e.dir == "":
		return usage.Errorf("--base-dir requires --dir, the directory with the adapter")
	}
	if e.kind != "" {
		if e.as, err = gguf.ParseFileType(e.kind); err != nil {
			return usage.Errorf("--%w", err)
		}
	}
	target := cmp.Or(e.gguf, e.hf)
	if err := requireNew(c, target, notOverwritten); err != nil {
		return err
	}
	_, err = os.Stat(filepath.Dir(target))
	return err
}

// openFiles sets dir and baseDir to the directories with the files to export. It downloads the
// files of a model of the server into the directory work.
func (e *export) openFiles(c *cobra.Command, model, work string) error {
	if e.dir == "" {
		if err := e.download(c, model, work); err != nil {
			return err
		}
	} else if _, err := os.Stat(filepath.Join(e.dir, weights.AdapterConfigFile)); err == nil {
		if e.adapter = true; e.baseDir == "" {
			return usage.Errorf("%s contains an adapter: give the directory of its base model with --base-dir", e.dir)
		}
	}
	switch {
	case !e.adapter && e.merge:
		return usage.Errorf("--merge is only for adapters, and %s is a full model", e.name)
	case !e.adapter && e.baseDir != "":
		return usage.Errorf("--base-dir is only for adapters, and %s contains a full model", e.dir)
	case e.adapter && !e.merge && e.as.Mixed():
		return usage.Errorf("--type %s is only for full models: add --merge, or give f32, f16, bf16 or q8_0", e.as)
	case e.kind == "" && (!e.adapter || e.merge):
		e.as = gguf.F16
	}
	return nil
}

// download downloads the files of a model into work. For an adapter that is not merged, it
// downloads only the configuration and the chat template of the base model.
func (e *export) download(c *cobra.Command, model, work string) error {
	client, err := newClient(c)
	if err != nil {
		return err
	}
	got, err := getModel(c.Context(), client, client.name("models", model))
	if err != nil {
		return err
	}
	e.dir, e.adapter = filepath.Join(work, "model"), got.Kind == domain.PEFTAddon
	if !e.adapter && e.merge {
		return nil // openFiles has reported this error before the download
	}
	p := newProgress(c, map[string]int64{got.Name: got.bytes()})
	if !e.adapter {
		return got.download(c, client, e.dir, nil, p)
	}
	base, err := getModel(c.Context(), client, got.BaseModel)
	if err != nil {
		return fmt.Errorf("the base model of %s cannot be read: %w", got.Name, err)
	}
	var only func(string) bool
	if e.baseDir = filepath.Join(work, "base"); e.merge {
		p.total += base.bytes()
	} else {
		only = func(file string) bool { return file == "config.json" || file == templateFile }
	}
	if err := got.download(c, client, e.dir, nil, p); err != nil {
		return err
	}
	return base.download(c, client, e.baseDir, only, p)
}

// A modelResource has the fields of a model that commands with files need.
type modelResource struct {
	Name      string `json:"name"`
	Kind      string `json:"kind"`
	BaseModel string `json:"baseModel"`
	Size      string `json:"sizeBytes"`
}

func getModel(ctx context.Context, c *client, name string) (m modelResource, err error) {
	return m, c.call(ctx, http.MethodGet, "/v1/"+name, nil, nil, &m)
}

func (m modelResource) bytes() int64 {
	n, _ := strconv.ParseInt(m.Size, 10, 64) // Size is "" if the model has no files yet
	return n
}

// download downloads the model's files, for whose names only returns true, into dir. If only is
// nil, it downloads all.
func (m modelResource) download(c *cobra.Command, client *client, dir string, only func(string) bool,
	p *progress) error {
	d := download{dir: dir, only: only, progress: p}
	_, err := d.run(c, client, "/v1/"+m.Name+":getDownloadEndpoint")
	return err
}

// write writes the exported file or directory, completely or not at all. work is a temporary
// directory on the same file system.
func (e *export) write(c *cobra.Command, work string) error {
	part := filepath.Join(work, "part")
	if e.hf != "" {
		if err := os.Mkdir(part, 0o755); err != nil {
			return err
		}
		if err := e.writeDir(c, part); err != nil {
			return err
		}
		return publish(c, part, e.hf)
	}
	f, err := os.Create(part)
	if err != nil {
		return err
	}
	replaced, err := e.writeGGUF(c, f)
	if err := errors.Join(err, f.Sync(), f.Close(), c.Context().Err()); err != nil {
		return err
	}
	for _, one := range replaced {
		fmt.Fprintf(c.ErrOrStderr(), "%s\n", one)
	}
	return publish(c, part, e.gguf)
}

func (e *export) writeGGUF(c *cobra.Command, f *os.File) (replaced []gguf.Replaced, err error) {
	p := newProgress(c, nil)
	defer p.clear()
	options := gguf.Options{Name: e.name, Type: e.as, Progress: func(tensor string, bytes, total int64) {
		p.total = total
		p.add(tensor, bytes)
	}}
	if !e.adapter {
		return gguf.Export(c.Context(), f, e.dir, options)
	}
	if options.Template, err = e.ownTemplate(); err != nil {
		return nil, err
	}
	if !e.merge {
		if options.Template != "" {
			fmt.Fprintf(c.ErrOrStderr(), "the adapter has its own chat template, which a GGUF file of an adapter "+
				"cannot contain: start llama.cpp with --chat-template-file and the chat_template.jinja of the "+
				"downloaded adapter\n")
		}
		return gguf.ExportAdapter(c.Context(), f, e.dir, e.baseDir, options)
	}
	if options.Adapter, err = llama.LoadAdapterFor(c.Context(), e.dir, e.baseDir); err != nil {
		return nil, err
	}
	return gguf.Export(c.Context(), f, e.baseDir, options)
}

// writeDir writes the merged model to a directory that exists.
func (e *export) writeDir(c *cobra.Command, dir string) error {
	adapter, err := llama.LoadAdapterFor(c.Context(), e.dir, e.baseDir)
	if err != nil {
		return err
	}
	sizes, err := readModelFiles(e.baseDir)
	if err != nil {
		return err
	}
	p := newProgress(c, sizes.sizes)
	defer p.clear()
	if err := llama.MergeDir(c.Context(), dir, e.baseDir, adapter, llama.MergeOptions{Progress: p.add}); err != nil {
		return err
	}
	template, err := e.ownTemplate()
	if err != nil || template == "" {
		return err
	}
	return os.WriteFile(filepath.Join(dir, templateFile), []byte(template), 0o644)
}

const templateFile = "chat_template.jinja"

// ownTemplate returns the chat template of the adapter if it differs from the one of its base
// model; "" if it does not.
func (e *export) ownTemplate() (string, error) {
	own, err := readTemplate(e.dir)
	if err != nil || own == "" {
		return "", err
	}
	base, err := readTemplate(e.baseDir)
	if base == own {
		own = ""
	}
	return own, err
}

func readTemplate(dir string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, templateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil
	}
	return string(text), err
}

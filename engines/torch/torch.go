// Package torch trains models with PyTorch: a Python script, which this program
// carries, runs as a program of its own and tells over a socket how it goes.
package torch

import (
	"bytes"
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/process"
	"anneal/engines/sandbox"
)

// script holds the trainer: the head of train.py says what it speaks.
//
//go:embed script/*.py
var script embed.FS

// Options say how Python is run. A zero field takes its default.
type Options struct {
	Python      string // the interpreter; default python3
	Runner      *sandbox.Runner
	GracePeriod time.Duration // the script has to save its checkpoint when it is asked to stop; default 1 min
}

type trainer struct {
	python   string
	software []string // folders that Python imports from
	script   fs.FS
	many     int // processes that share a training, one for each device
	grace    time.Duration
	runner   *sandbox.Runner
}

// Methods are those that the trainer knows beyond Supervised.
func Methods() []string { return []string{engines.DPO, engines.Reinforcement} }

const install = "`pip install torch transformers peft` installs what it needs"

// probe tells what the script would miss, and how many devices it would find.
const probe = `
import importlib.util, json, sys
missing = [n for n in ("torch", "transformers", "peft") if importlib.util.find_spec(n) is None]
devices = 0
if not missing:
    import torch
    devices = torch.cuda.device_count()
print("\n` + foundMark + `" + json.dumps({"missing": missing, "devices": devices, "executable": sys.executable, "software": [sys.prefix, sys.base_prefix] + sys.path}))
`

const foundMark = "anneal-found:"

// New makes a trainer. It fails, saying what to install, where the interpreter
// or a library is missing.
func New(ctx context.Context, o Options) (engines.Trainer, error) {
	o.Python = cmp.Or(o.Python, "python3")
	python, err := process.Find(o.Python, "install Python 3.10 or newer")
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, python, "-c", probe)
	command.Env = process.Environment(prefixes)
	out, err := command.Output()
	var found struct {
		Missing    []string `json:"missing"`
		Devices    int      `json:"devices"`
		Executable string   `json:"executable"` // itself, where o.Python is a script that starts it
		Software   []string `json:"software"`
	}
	if err == nil {
		_, told, _ := bytes.Cut(out, []byte(foundMark)) // libraries speak up on the same output
		line, _, _ := bytes.Cut(told, []byte("\n"))
		err = json.Unmarshal(line, &found)
	}
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s cannot tell what it has (%v): %s", o.Python, err, install)
	}
	if len(found.Missing) > 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has no %s: %s", o.Python, strings.Join(found.Missing, ", "), install)
	}
	if err := o.Runner.Check(ctx); err != nil {
		return nil, err
	}
	software := slices.DeleteFunc(found.Software, func(path string) bool { // the script's folder, archives
		info, err := os.Stat(path)
		return err != nil || !filepath.IsAbs(path) || !info.IsDir()
	})
	files, err := fs.Sub(script, "script")
	return trainer{python: cmp.Or(found.Executable, python), software: software, script: files, many: max(1, found.Devices),
		grace: cmp.Or(o.GracePeriod, time.Minute), runner: o.Runner}, err
}

// prefixes are of the variables that Python's libraries look at.
var prefixes = []string{"PYTHON", "TORCH", "CUDA_", "NVIDIA_", "NCCL_", "HF_HOME", "XDG_CACHE_", "OMP_", "ROCR_", "HIP_"}

// Train implements engines.Trainer.
func (t trainer) Train(ctx context.Context, order engines.TrainRequest, watch engines.TrainWatcher) (engines.TrainResult, error) {
	if order.Settings.JinjaTemplate != "" {
		return engines.TrainResult{}, domain.Errorf(domain.FailedPrecondition, "jinjaTemplate: the PyTorch trainer renders chats by the model's own template: put yours into the model, or leave it out")
	}
	if how := order.Settings.Rollouts; how != nil && !emptyBody(how.ExtraBody) {
		return engines.TrainResult{}, domain.Errorf(domain.FailedPrecondition, "inferenceParameters.extraBody: the PyTorch trainer draws answers by temperature, topP and topK alone: leave it out")
	}
	own, err := os.MkdirTemp("", "anneal-torch-*") // the path of a socket must be short
	if err != nil {
		return engines.TrainResult{}, err
	}
	defer os.RemoveAll(own)
	run, err := t.begin(own, order, watch)
	if err != nil {
		return engines.TrainResult{}, err
	}
	defer run.close()
	return run.follow(ctx)
}

// emptyBody tells whether a JSON object, as text, has nothing in it.
func emptyBody(text string) bool {
	var object map[string]any
	return strings.TrimSpace(text) == "" || json.Unmarshal([]byte(text), &object) == nil && len(object) == 0
}

// begin starts the script. It reads the order from a file, since there may be
// several of it, and the first of them talks over the socket.
func (t trainer) begin(own string, order engines.TrainRequest, watch engines.TrainWatcher) (*training, error) {
	program, told, socket := filepath.Join(own, "script", "train.py"), filepath.Join(own, "order.json"), filepath.Join(own, "socket")
	run := &training{order: order, written: filepath.Join(order.WorkDir, "run"), watch: watch, grace: t.grace}
	script := orderOf(order)
	script.WorkDir = run.written
	data, err := json.Marshal(script)
	if err == nil {
		err = os.MkdirAll(run.written, 0o700)
	}
	if err == nil {
		err = os.WriteFile(told, data, 0o600)
	}
	if err == nil {
		err = os.CopyFS(filepath.Dir(program), t.script)
	}
	if err != nil {
		return nil, err
	}
	if err := run.listen(socket); err != nil {
		return nil, err
	}
	args := []string{t.python, program, told, socket}
	if t.many > 1 {
		args = append([]string{t.python, "-m", "torch.distributed.run", "--standalone", fmt.Sprintf("--nproc_per_node=%d", t.many)}, args[1:]...)
	}
	env := []string{"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", "PYTHONUNBUFFERED=1"}
	if t.runner.Confined() { // there is no other interface
		env = append(env, "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
	}
	read := slices.Concat([]string{own, order.BaseDir, order.AdapterDir, order.ResumeDir}, order.DataFiles, order.EvalFiles)
	run.program, err = t.runner.Start(sandbox.Program{Args: args, Env: process.Environment(prefixes, env...), Programs: t.software,
		Read: slices.DeleteFunc(read, func(path string) bool { return path == "" }), Write: run.written, Socket: socket, Devices: true,
		Limits: sandbox.Limits{Processes: 8192, Files: 1 << 16}})
	if err != nil {
		run.close()
		return nil, err
	}
	return run, nil
}

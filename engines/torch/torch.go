// Package torch trains models with PyTorch: an embedded Python script runs in its own process, and
// reports its progress over a Unix socket.
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

// script is the Python program that trains. train.py documents its protocol.
//
//go:embed script/*.py
var script embed.FS

// Options configure the trainer. A field that is zero has its default.
type Options struct {
	Python string // path of the Python interpreter; default python3
	Runner *sandbox.Runner
	// GracePeriod is the time that the script has to save a checkpoint after it was requested to
	// stop; default 1 min.
	GracePeriod time.Duration
}

type trainer struct {
	python    string
	software  []string // directories from which Python imports modules
	script    fs.FS
	processes int // number of devices that PyTorch sees, at least 1: see processesOn
	grace     time.Duration
	runner    *sandbox.Runner
}

// Methods returns the supported training methods besides Supervised.
func Methods() []string { return []string{engines.DPO, engines.Reinforcement} }

const install = "install them with `pip install torch transformers peft`"

// probe is a Python program that prints the missing libraries, the number of devices, and the
// directories from which Python imports modules.
const probe = `
import importlib.util, json, sys
missing = [n for n in ("torch", "transformers", "peft") if importlib.util.find_spec(n) is None]
devices = 0
if not missing:
    import torch
    devices = torch.cuda.device_count()
software = [sys.prefix, sys.base_prefix] + sys.path
found = {"missing": missing, "devices": devices, "executable": sys.executable, "software": software}
print("\n` + foundMark + `" + json.dumps(found))
`

const foundMark = "anneal-found:"

// New returns a trainer. It returns an error if the interpreter or a library is missing.
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
		Missing []string `json:"missing"`
		Devices int      `json:"devices"`
		// Executable is the path of the interpreter's program; o.Python may be a script that starts
		// it.
		Executable string   `json:"executable"`
		Software   []string `json:"software"`
	}
	if err == nil {
		_, report, _ := bytes.Cut(out, []byte(foundMark)) // libraries also print to the output
		line, _, _ := bytes.Cut(report, []byte("\n"))
		err = json.Unmarshal(line, &found)
	}
	if err != nil {
		return nil, domain.Errorf(domain.FailedPrecondition,
			"cannot list the libraries of the Python interpreter %s (%v): check that it runs, and that torch, transformers "+
				"and peft are installed",
			o.Python, err)
	}
	if len(found.Missing) > 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "the Python interpreter %s has no %s: %s", o.Python,
			strings.Join(found.Missing, ", "), install)
	}
	if err := o.Runner.Check(ctx); err != nil {
		return nil, err
	}
	// sys.path also contains archives, and an empty entry for the current directory.
	software := slices.DeleteFunc(found.Software, func(path string) bool {
		info, err := os.Stat(path)
		return err != nil || !filepath.IsAbs(path) || !info.IsDir()
	})
	files, err := fs.Sub(script, "script")
	return trainer{
		python: cmp.Or(found.Executable, python), software: software, script: files, processes: max(1, found.Devices),
		grace: cmp.Or(o.GracePeriod, time.Minute), runner: o.Runner,
	}, err
}

// prefixes are the prefixes of the environment variables that Python and its libraries read.
var prefixes = []string{
	"PYTHON", "TORCH", "CUDA_", "NVIDIA_", "NCCL_", "HF_HOME", "XDG_CACHE_", "OMP_", "ROCR_", "HIP_",
}

// Train implements engines.Trainer.
func (t trainer) Train(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (engines.TrainResult, error) {
	if request.Settings.JinjaTemplate != "" {
		return engines.TrainResult{}, domain.Errorf(domain.FailedPrecondition,
			"jinjaTemplate: the PyTorch trainer supports only the model's own chat template: leave it out, or upload a model "+
				"with this template")
	}
	if r := request.Settings.Rollouts; r != nil && !emptyBody(r.ExtraBody) {
		return engines.TrainResult{}, domain.Errorf(domain.FailedPrecondition,
			"inferenceParameters.extraBody: the PyTorch trainer supports only temperature, topP and topK: leave it out")
	}
	own, err := os.MkdirTemp("", "anneal-torch-*") // not in WorkDir: a Unix socket's path may have at most 107 bytes
	if err != nil {
		return engines.TrainResult{}, err
	}
	defer os.RemoveAll(own)
	run, err := t.start(own, request, watch)
	if err != nil {
		return engines.TrainResult{}, err
	}
	defer run.close()
	return run.follow(ctx)
}

// emptyBody reports whether a text is an empty JSON object, or blank.
func emptyBody(text string) bool {
	var object map[string]any
	return strings.TrimSpace(text) == "" || json.Unmarshal([]byte(text), &object) == nil && len(object) == 0
}

// processesOn returns the number of processes of a training run: one for each allocated device or,
// without allocated devices, for each device that PyTorch sees.
func (t trainer) processesOn(devices []engines.Device) int {
	if len(devices) > 0 {
		return len(devices)
	}
	return t.processes
}

// start starts the script. The request is in a file, because all processes of the script read it.
// Only the first process connects to the socket.
func (t trainer) start(
	own string, request engines.TrainRequest, watch engines.TrainWatcher,
) (*training, error) {
	program := filepath.Join(own, "script", "train.py")
	requestFile, socket := filepath.Join(own, "request.json"), filepath.Join(own, "socket")
	run := &training{
		request: request, writable: filepath.Join(request.WorkDir, "run"), watch: watch, grace: t.grace,
	}
	content := requestOf(request)
	content.WorkDir = run.writable
	data, err := json.Marshal(content)
	if err == nil {
		err = os.MkdirAll(run.writable, 0o700)
	}
	if err == nil {
		err = os.WriteFile(requestFile, data, 0o600)
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
	args := []string{t.python, program, requestFile, socket}
	if processes := t.processesOn(request.Devices); processes > 1 {
		torchrun := []string{
			t.python, "-m", "torch.distributed.run", "--standalone", fmt.Sprintf("--nproc_per_node=%d", processes),
		}
		args = append(torchrun, args[1:]...)
	}
	env := []string{"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", "PYTHONUNBUFFERED=1"}
	if t.runner.Confined() { // the loopback is the only network interface of the sandbox
		env = append(env, "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
	}
	read := slices.Concat([]string{own, request.BaseDir, request.AdapterDir, request.ResumeDir},
		request.DataFiles, request.EvalFiles)
	run.program, err = t.runner.Start(sandbox.Program{
		Args: args, Env: process.Environment(prefixes, slices.Concat(env, engines.VisibleDevicesEnv(request.Devices))...),
		Programs: t.software,
		Read:     slices.DeleteFunc(read, func(path string) bool { return path == "" }),
		Write:    run.writable, Socket: socket, Devices: true, Output: request.Log,
		Limits: sandbox.Limits{Processes: 8192, Files: 1 << 16},
	})
	if err != nil {
		run.close()
		return nil, err
	}
	return run, nil
}

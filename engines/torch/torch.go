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
	// GangAddress is the IP address of this machine at which the training processes of other nodes
	// connect to those of this node; "" trains on this node alone.
	GangAddress string
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

// New returns a trainer, which is an engines.GangTrainer if o.GangAddress is set. It returns an error
// if the interpreter or a library is missing.
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
	if err != nil {
		return nil, err
	}
	t := trainer{
		python: cmp.Or(found.Executable, python), software: software, script: files, processes: max(1, found.Devices),
		grace: cmp.Or(o.GracePeriod, time.Minute), runner: o.Runner,
	}
	if o.GangAddress == "" {
		return t, nil
	}
	device, err := InterfaceOf(o.GangAddress)
	return gangTrainer{t, o.GangAddress, device}, err
}

// prefixes are the prefixes of the environment variables that Python and its libraries read.
var prefixes = []string{
	"PYTHON", "TORCH", "CUDA_", "NVIDIA_", "NCCL_", "HF_HOME", "XDG_CACHE_", "OMP_", "ROCR_", "HIP_",
}

// Train implements engines.Trainer.
func (t trainer) Train(
	ctx context.Context, request engines.TrainRequest, watch engines.TrainWatcher,
) (engines.TrainResult, error) {
	if err := checkSettings(request.Settings); err != nil {
		return engines.TrainResult{}, err
	}
	run, err := t.start(request, watch, nil)
	if err != nil {
		return engines.TrainResult{}, err
	}
	defer run.close()
	return run.follow(ctx)
}

// checkSettings returns an error if the script does not support a setting.
func checkSettings(s engines.TrainSettings) error {
	if s.JinjaTemplate != "" {
		return domain.Errorf(domain.FailedPrecondition,
			"jinjaTemplate: the PyTorch trainer supports only the model's own chat template: leave it out, or upload a model "+
				"with this template")
	}
	if s.ReplayWeight > 0 {
		return domain.Errorf(domain.FailedPrecondition,
			"replayWeight: the PyTorch trainer does not replay responses: leave it out, or add rows of earlier tasks to the "+
				"dataset")
	}
	if r := s.Rollouts; r != nil && !emptyBody(r.ExtraBody) {
		return domain.Errorf(domain.FailedPrecondition,
			"inferenceParameters.extraBody: the PyTorch trainer supports only temperature, topP and topK: leave it out")
	}
	return nil
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

// start starts the script; close of the result ends it. The request is in a file, because all
// processes of the script read it. Only the first process of a training run connects to the socket.
// m is nil for a training run on this node alone.
func (t trainer) start(
	request engines.TrainRequest, watch engines.TrainWatcher, m *membership,
) (_ *training, err error) {
	own, err := os.MkdirTemp("", "anneal-torch-*") // not in WorkDir: a Unix socket's path may have at most 107 bytes
	if err != nil {
		return nil, err
	}
	run := &training{
		request: request, own: own, writable: filepath.Join(request.WorkDir, "run"), watch: watch, grace: t.grace,
	}
	defer func() {
		if err != nil {
			run.close()
		}
	}()
	program := filepath.Join(own, "script", "train.py")
	requestFile, socket := filepath.Join(own, "request.json"), filepath.Join(own, "socket")
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
	if err == nil {
		err = run.listen(socket)
	}
	if err != nil {
		return nil, err
	}
	args := append(t.launcher(request.Devices, m), program, requestFile, socket)
	env := []string{"HF_HUB_OFFLINE=1", "TOKENIZERS_PARALLELISM=false", "PYTHONUNBUFFERED=1"}
	switch {
	case m != nil:
		env = append(env, "NCCL_SOCKET_IFNAME="+m.device, "GLOO_SOCKET_IFNAME="+m.device)
	case t.runner.Confined(): // the loopback is the only network interface of the sandbox
		env = append(env, "NCCL_SOCKET_IFNAME=lo", "GLOO_SOCKET_IFNAME=lo")
	}
	read := slices.Concat([]string{own, request.BaseDir, request.AdapterDir, request.ResumeDir},
		request.DataFiles, request.EvalFiles)
	run.program, err = t.runner.Start(sandbox.Program{
		Args: args, Env: process.Environment(prefixes, slices.Concat(env, engines.VisibleDevicesEnv(request.Devices))...),
		Programs: t.software,
		Read:     slices.DeleteFunc(read, func(path string) bool { return path == "" }),
		Write:    run.writable, Socket: socket, Devices: true, Network: m != nil, Output: request.Log,
		Limits: sandbox.Limits{Processes: 8192, Files: 1 << 16},
	})
	return run, err
}

// launcher returns the beginning of the script's command line: Python or, for several processes,
// torchrun.
func (t trainer) launcher(devices []engines.Device, m *membership) []string {
	processes, torchrun := t.processesOn(devices), []string{t.python, "-m", "torch.distributed.run"}
	switch {
	case m != nil:
		torchrun = append(torchrun, m.args()...)
	case processes > 1:
		torchrun = append(torchrun, "--standalone")
	default:
		return []string{t.python}
	}
	return append(torchrun, fmt.Sprintf("--nproc_per_node=%d", processes))
}

package node

import (
	"context"
	"os"
	"path/filepath"
	"runtime/debug"

	"anneal/engines/sandbox"
	"anneal/engines/sound"
	"anneal/workers/agent"
)

// RunAgent runs the agent of a node until ctx is done. flags set the engines, the devices and the
// labels in o; evaluators is the sandbox in which the agent runs evaluators.
func RunAgent(ctx context.Context, o agent.Options, flags Flags, evaluators *sandbox.Sandbox) error {
	devices, err := flags.devices()
	if err != nil {
		return err
	}
	// make the path absolute, because engine programs have other working directories
	if o.Dir, err = filepath.Abs(o.Dir); err != nil {
		return err
	}
	runner := flags.Engine.runner(ctx, o.Log)
	if o.Engine, err = flags.Engine.build(ctx, o.Dir, runner, o.Log); err != nil {
		return err
	}
	o.Labels, o.CheckDevices, o.ShareAccelerators = flags.Labels(), flags.checkDevices, flags.shareAccelerators
	o.Node, o.Pool, o.Region, o.Version, o.Sound = flags.ID, flags.Pool, flags.Region, flags.Version,
		sound.Opener{Runner: runner}.Open
	if err := evaluators.Check(ctx); err != nil {
		o.Engine.Missing["score"] = err.Error()
	} else {
		o.Engine.Scorer = evaluators
		delete(o.Engine.Missing, "score")
	}
	switch {
	case len(devices) > 0:
		o.Capacity = devices
	case !flags.Engine.usesDevices():
		// An empty map declares no devices, because no engine of the node would use them.
		o.Capacity = map[string]int{}
	}
	a, err := agent.New(o)
	if err != nil {
		return err
	}
	setMemoryLimit(a.Memory(), os.Getenv("GOMEMLIMIT"))
	if err := flags.Metrics.serve(ctx, a, o.Dir, o.Log); err != nil {
		return err
	}
	return a.Run(ctx)
}

// setMemoryLimit sets the memory limit of the Go runtime to 90% of memory, the size of the
// machine's memory in bytes. Without a limit, garbage may grow to the size of the models' weights
// before the garbage collector runs. If configured, the value of GOMEMLIMIT, is set, setMemoryLimit
// does nothing.
func setMemoryLimit(memory int64, configured string) {
	if configured == "" {
		debug.SetMemoryLimit(memory / 10 * 9)
	}
}

// Package node configures and runs the agent of a node, in the server's process or in its own.
package node

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/engines/sandbox"
	"anneal/internal/usage"
	"anneal/workers/agent"
)

// Flags configure the agent of a node: the local worker of `anneal serve`, or the agent of `anneal
// work`.
type Flags struct {
	ID, Pool, Region string
	Engine           EngineFlags
	Version          string        // version of this program
	Metrics          *MetricsFlags // nil for an agent without metrics of its own

	accelerators, labels []string
	checkDevices         time.Duration
	evaluatorsUnconfined bool
	shareAccelerators    bool
}

// maxDevices is the maximum number of devices of one type that --device may declare.
const maxDevices = 1024

// minCheckDevices is the minimum of --check-devices, the interval at which the agent reads the
// state of devices.
const minCheckDevices = 100 * time.Millisecond

// Add adds the flags to f, in two sections of the help.
func (n *Flags) Add(f *pflag.FlagSet) {
	usage.AddSection(f, "Node", n.add)
	usage.AddSection(f, "Engines of the node", n.Engine.Add)
}

func (n *Flags) add(f *pflag.FlagSet) {
	f.StringVar(&n.ID, "node-id", "", "ID of the node (default: local for serve; for work, an ID that "+
		"is generated and stored in its directory)")
	f.StringVar(&n.Pool, "pool", "", "pool of the node: training or inference (default: both)")
	f.StringVar(&n.Region, "region", "", "region of the node, such as EU_FRANKFURT_1, for deployments and jobs that name "+
		"regions (default: none)")
	f.StringArrayVar(&n.labels, "label", nil, "label `KEY=VALUE` of the node, which `anneal account nodes` selects; "+
		"repeatable")
	f.BoolVar(&n.evaluatorsUnconfined, "evaluators-without-sandbox", false,
		"run the code of evaluators without a sandbox, "+
			"with all permissions of this user: only for code that you trust")
	f.StringArrayVar(&n.accelerators, "accelerators", nil, "devices of the node, instead of those detected: `TYPE=N`, "+
		"such as VENDOR_A_H100_80GB=8; repeatable")
	f.BoolVar(&n.shareAccelerators, "share-accelerators", false, "let deployments with acceleratorShare share devices "+
		"of this node; the engine limits the memory of each replica, and no hardware does")
	f.DurationVar(&n.checkDevices, "check-devices", agent.DefaultCheckDevices, "time between two readings of the state "+
		"of detected devices, which withdraw failed devices from the node; 0 disables the readings")
}

// Check returns an error with all violations of the flags; nil if they are valid.
func (n *Flags) Check() error {
	var v domain.Violations
	v.Require(n.ID == "" || domain.ValidID(n.ID), "--node-id", domain.IDRule)
	v.Require(n.Pool == "" || n.Pool == domain.PoolTraining || n.Pool == domain.PoolInference, "--pool",
		"must be training or inference")
	v.Require(n.Region == "" || slices.Contains(domain.Regions[1:], n.Region), "--region", "%s",
		domain.OneOfRule(n.Region, domain.Regions[1:]))
	for _, text := range n.labels {
		key, value, found := strings.Cut(text, "=")
		v.Require(found && domain.ValidLabel(key, value), "--label", "is %q, and must be KEY=VALUE: key and value %s", text,
			domain.LabelRule)
	}
	v.Require(len(n.Labels()) <= domain.MaxNodeLabels, "--label", "must be given at most %d times", domain.MaxNodeLabels)
	_, err := n.devices()
	v.Require(err == nil, "--accelerators", "must be TYPE=N with N from 1 to %d, such as VENDOR_A_H100_80GB=8", maxDevices)
	v.Require(n.checkDevices == 0 || n.checkDevices >= minCheckDevices, "--check-devices",
		"is %s, and must be at least %s, or 0", n.checkDevices, minCheckDevices)
	n.Engine.check(&v)
	if err := v.Err(); err != nil {
		return usage.Error{Err: err}
	}
	return nil
}

// Labels returns the labels of --label; nil if there are none.
func (n *Flags) Labels() map[string]string {
	var labels map[string]string
	for _, text := range n.labels {
		if labels == nil {
			labels = map[string]string{}
		}
		key, value, _ := strings.Cut(text, "=")
		labels[key] = value
	}
	return labels
}

// devices returns how many devices of each type the flag --device declares.
func (n *Flags) devices() (map[string]int, error) {
	devices := map[string]int{}
	for _, text := range n.accelerators {
		kind, number, _ := strings.Cut(text, "=")
		count, err := strconv.Atoi(number)
		if err != nil || count < 1 || count > maxDevices || kind == "" {
			return nil, fmt.Errorf("%q", text)
		}
		devices[kind] += count
	}
	return devices, nil
}

// Sandbox returns the sandbox in which evaluators run. It logs a warning if the sandbox is
// disabled, or if it does not work on this node.
func (n *Flags) Sandbox(ctx context.Context, logger *slog.Logger) *sandbox.Sandbox {
	box := sandbox.New(sandbox.Options{Plain: n.evaluatorsUnconfined})
	if n.evaluatorsUnconfined {
		logger.Warn("evaluators run WITHOUT a sandbox: their code has all permissions of this user; run only code that " +
			"you trust")
	}
	if err := box.Check(ctx); err != nil {
		logger.Warn("this node cannot build or run evaluators", "error", err)
	}
	return box
}

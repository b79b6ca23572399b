package server

import (
	"context"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"anneal/engines/sandbox"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
)

// Results of a check of the doctor.
const (
	CheckOK      = "ok"
	CheckWarning = "warning" // the server works, but less safely or with fewer functions
	CheckFailed  = "failed"  // the server cannot start, or would lose data
	CheckSkipped = "skipped"
)

// A Finding is the result of one check of an installation.
type Finding struct {
	Check  string `json:"check"`
	Result string `json:"result"` // CheckOK, CheckWarning, CheckFailed or CheckSkipped
	Detail string `json:"detail"`
	Advice string `json:"advice,omitempty"` // what to do; "" for CheckOK
}

// A check examines one part of an installation. It changes nothing but temporary files.
type check struct {
	name string
	run  func(ctx context.Context, flags Flags) Finding
}

// checks are all checks of the doctor, in the order of the report.
var checks = []check{
	{"data directory", checkData},
	{"private files", checkPrivateFiles},
	{"keys", checkKeys},
	{"disk space", checkSpace},
	{"disk sync", checkSync},
	{"clock", checkClock},
	{"file descriptors", checkDescriptors},
	{"log", checkLog},
	{"deletions", checkDeletions},
	{"NATS cluster", checkCluster},
	{"certificates", checkCertificates},
	{"login", checkLogin},
	{"sandbox", checkSandbox},
	{"engines", checkEngines},
}

// Diagnose checks whether a server with the flags can run on this machine, and whether its data
// directory is intact as far as can be seen without reading the log. The server may be running.
func Diagnose(ctx context.Context, flags Flags) []Finding {
	findings := make([]Finding, 0, len(checks))
	for _, one := range checks {
		finding := one.run(ctx, flags)
		finding.Check = one.name
		findings = append(findings, finding)
	}
	return findings
}

func ok(detail string) Finding { return Finding{Result: CheckOK, Detail: detail} }

func skipped(detail string) Finding { return Finding{Result: CheckSkipped, Detail: detail} }

func failed(err error, advice string) Finding {
	return Finding{Result: CheckFailed, Detail: err.Error(), Advice: advice}
}

// isNew reports whether no server has started with the data directory yet.
func isNew(flags Flags) bool { return datadir.Dir(flags.Data).CheckExists() != nil }

func checkSandbox(ctx context.Context, flags Flags) Finding {
	if !flags.worker {
		return skipped("this server runs no worker")
	}
	confined := sandbox.New(sandbox.Options{})
	if err := confined.Check(ctx); err != nil {
		return Finding{Result: CheckWarning, Detail: err.Error(), Advice: "evaluators and engines that are programs need " +
			"it on this machine: " + sandbox.Install}
	}
	return ok("the code of evaluators runs in a sandbox")
}

// checkEngines builds the engines that the flags select, and reports what they cannot do.
func checkEngines(ctx context.Context, flags Flags) Finding {
	if !flags.worker {
		return skipped("this server runs no worker")
	}
	dir, err := os.MkdirTemp("", "anneal-doctor-")
	if err != nil {
		return failed(err, "make the directory for temporary files writable")
	}
	defer os.RemoveAll(dir)
	missing, err := flags.Node.Engine.Missing(ctx, dir, slog.New(slog.DiscardHandler))
	if err != nil {
		return failed(err, "correct the flags of the engines")
	}
	delete(missing, "score") // evaluators run in the sandbox, which has a check of its own
	var reasons []string
	for _, ability := range slices.Sorted(maps.Keys(missing)) {
		reasons = append(reasons, ability+": "+missing[ability])
	}
	if len(reasons) > 0 {
		return Finding{Result: CheckWarning, Detail: "this node lacks abilities: " + strings.Join(reasons, "; "),
			Advice: "install what is missing, or leave this work to other nodes"}
	}
	return ok("the engines of this node have all their programs")
}

// checkCluster reports NATS servers that acknowledge events before they are on disk.
func checkCluster(ctx context.Context, flags Flags) Finding {
	if flags.natsURL == "" {
		return skipped("the log is in the embedded NATS server, which syncs each event")
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	config, err := flags.tls.LoadCluster(true)
	if err != nil {
		return failed(err, "correct the flags --nats-cert, --nats-key and --nats-ca")
	}
	const advice = "check --nats-url, $ANNEAL_NATS_PASSWORD and the NATS servers"
	unsynced, err := natsserver.UnsyncedServers(ctx, flags.natsURL, os.Getenv("ANNEAL_NATS_PASSWORD"), config)
	switch {
	case err != nil:
		return failed(err, advice)
	case len(unsynced) > 0:
		return Finding{Result: CheckWarning, Detail: "these NATS servers acknowledge events before they are on disk: " +
			strings.Join(unsynced, ", "), Advice: "set sync_interval: always in the jetstream block of each"}
	}
	return ok("all NATS servers sync each event before they acknowledge it")
}

package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/integrity"
	"anneal/internal/datadir"
	"anneal/projections"
)

// removedEventsFile is the name of the file with the events that a repair removed, in the directory
// with the former files.
const removedEventsFile = "given-up.jsonl"

// Repair repairs the log of a stopped server, and reports what it found and changed. Only if
// acceptLoss is true, it removes events: those from the first event that no copy contains. It then
// also renames the directories of snapshots and of the Merkle tree, because they may contain
// removed events.
func Repair(dir datadir.Dir, acceptLoss bool) (integrity.RepairReport, error) {
	if err := dir.CheckExists(); err != nil {
		return integrity.RepairReport{}, err
	}
	release, err := disk.LockDir(string(dir))
	if err != nil {
		return integrity.RepairReport{}, err
	}
	defer release()
	holds, err := projections.Newest(dir.Path("snapshots"))
	if err != nil {
		return integrity.RepairReport{}, err
	}
	report, err := integrity.Repair(integrity.RepairOptions{Dir: dir.Path("nats"), Holds: holds, AcceptLoss: acceptLoss,
		Now: time.Now(),
		BeforeLoss: func(r integrity.RepairReport) error {
			return dir.SuspendDeletions("'anneal log repair --accept-loss' truncated the log after position %d. "+
				"Files and data keys of the removed events are kept until this file is removed: first repeat the "+
				"deletions, revocations and suspensions among the events in %s.",
				r.Events, filepath.Join(r.Aside, removedEventsFile))
		}})
	if err != nil || report.Intact() || !report.Changed {
		return report, err
	}
	for _, name := range []string{"snapshots", treeDir} {
		err := os.Rename(dir.Path(name), filepath.Join(report.Aside, name))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return report, err
		}
	}
	return report, nil
}

// RevertedEvents returns the deletions, revocations and suspensions among the events that a repair
// removed. They have no effect any more, so an operator must repeat them. Each text has the
// resource's name and the event's type.
func RevertedEvents(report integrity.RepairReport) (reverted []string) {
	content, err := os.ReadFile(filepath.Join(report.Aside, removedEventsFile))
	if err != nil {
		return nil // the repair removed no events
	}
	for line := range bytes.Lines(content) {
		var event struct {
			Subject    string            `json:"subject"`
			Attributes map[string]string `json:"attributes"`
		}
		if json.Unmarshal(line, &event) != nil {
			continue
		}
		kind := event.Attributes["ce-type"]
		if strings.Contains(kind, ".deleted.") || strings.Contains(kind, ".revoked.") ||
			strings.Contains(kind, ".suspended.") {
			reverted = append(reverted, fmt.Sprintf("%s (%s)", domain.NameOf(event.Subject), kind))
		}
	}
	return reverted
}

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

// givenUpFile is the file with the events that a repair removed. It is in the directory of the
// former files.
const givenUpFile = "given-up.jsonl"

// Repair repairs the log of a stopped server, and returns what it found and changed. It discards
// events that it cannot restore only if acceptLoss is set; then it also moves the snapshots and the
// tree aside, because they may contain lost events.
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
			return dir.HoldSweeps("'anneal log repair --accept-loss' truncated the log after position %d. Files and data keys "+
				"of the removed events are kept until this file is removed: first repeat the deletions, "+
				"revocations and suspensions among the events in %s.",
				r.Events, filepath.Join(r.Aside, givenUpFile))
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
// removed. After the next start they have no effect, so that an operator must repeat them.
func RevertedEvents(report integrity.RepairReport) (reverted []string) {
	content, err := os.ReadFile(filepath.Join(report.Aside, givenUpFile))
	if err != nil {
		return nil // no events were removed
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

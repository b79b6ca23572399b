package api

import (
	"context"
	"fmt"
	"time"

	"anneal/api/rest"
	"anneal/domain"
)

// A fakeBackups implements rest.Backups with one target. A backup fails without recipients, and is
// complete once it was listed.
type fakeBackups struct{ one *rest.Backup }

var backupTime = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

func (b *fakeBackups) Start(_ context.Context, target string, recipients []string, references bool) (rest.Backup,
	error) {
	if len(recipients) == 0 {
		return rest.Backup{}, domain.Errorf(domain.InvalidArgument, "recipients: at least one is required")
	}
	b.one = &rest.Backup{Target: target, Recipients: recipients, References: references, State: rest.BackupRunning,
		Status: domain.Status{Code: domain.OK.String()}, StartTime: &backupTime}
	return *b.one, nil
}

func (b *fakeBackups) Prune(_ context.Context, target string, keep, keepDays int) (rest.PrunedBackups, error) {
	return rest.PrunedBackups{Target: target, Kept: []string{"20300102T030405.000000Z"},
		Removed: []string{fmt.Sprintf("keep %d or %d days", keep, keepDays)}, DeletedObjects: 3, DeletedBytes: 600}, nil
}

func (b *fakeBackups) All() []rest.Backup {
	if b.one == nil {
		return nil
	}
	done := *b.one
	done.State, done.CopiedBytes = rest.BackupCompleted, 512
	done.Last = &rest.CompleteBackup{ID: "20300102T030405.000000Z", Position: 1, EventID: "e1", StateTime: &backupTime,
		EndTime: &backupTime, Files: 1, FileBytes: 300, CopiedBytes: 512}
	return []rest.Backup{done}
}

func backupRows() []row {
	const create = "POST /v1/backups operator\n{\"target\": \"/mnt/backups\", \"recipients\": " +
		"[\"age1dawqwht3p57jmhq3k7m9w0pswrsw3uyfdzj77f95qn6vwtj0000000000\"]}"
	return []row{
		{id: "createBackup", request: create},
		{id: "pruneBackups", request: "POST /v1/backups:prune operator\n" +
			`{"target": "/mnt/backups", "keep": 24, "keepDays": 30}`},
		{id: "listBackups", scene: marked(create), request: "GET /v1/backups operator"},
	}
}

package rest

import (
	"context"
	"reflect"
	"strconv"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
)

// Backups backs up the installation.
type Backups interface {
	// Start starts a backup to a target. Without recipients, the backup has those of the last backup to
	// the target.
	Start(ctx context.Context, target string, recipients []string, references bool) (Backup, error)
	// Prune removes backups from a target, except the newest keep and those of the last keepDays days.
	Prune(ctx context.Context, target string, keep, keepDays int) (PrunedBackups, error)
	// All returns the backups to every target, ordered by target.
	All() []Backup
}

// States of a backup.
const (
	BackupRunning   = "RUNNING"
	BackupCompleted = "COMPLETED"
	BackupFailed    = "FAILED"
)

// A Backup describes the backups to one target.
type Backup struct {
	Target      string        `json:"target"`
	Recipients  []string      `json:"recipients"`
	References  bool          `json:"references,omitempty"`
	State       string        `json:"state"`
	Status      domain.Status `json:"status"`
	StartTime   *time.Time    `json:"startTime,omitempty"`
	CopiedBytes domain.Count  `json:"copiedBytes"`
	// Last is the last complete backup; nil if there is none.
	Last *CompleteBackup `json:"last,omitempty"`
	// EventsSince is the number of events after the last complete backup.
	EventsSince domain.Count `json:"eventsSince"`
	// Age is the time since the state of the last complete backup.
	Age string `json:"age,omitempty"`
}

// PrunedBackups are the backups that were removed from a target.
type PrunedBackups struct {
	Target         string       `json:"target"`
	Kept           []string     `json:"kept"`
	Removed        []string     `json:"removed"`
	DeletedObjects int          `json:"deletedObjects"`
	DeletedBytes   domain.Count `json:"deletedBytes"`
}

// A CompleteBackup is a backup that can be restored.
type CompleteBackup struct {
	ID          string       `json:"id"`
	Position    domain.Count `json:"position"`
	EventID     string       `json:"eventId"`
	StateTime   *time.Time   `json:"stateTime"`
	EndTime     *time.Time   `json:"endTime"`
	Files       int          `json:"files"`
	FileBytes   domain.Count `json:"fileBytes"`
	CopiedBytes domain.Count `json:"copiedBytes"`
	Missing     []string     `json:"missing,omitempty"`
}

var _ = register(backupOperations)

func backupOperations(s *Service) []request.Operation {
	all := []request.Operation{
		{ID: "createBackup", Method: "POST", Path: "/v1/backups", Summary: "Back up the installation",
			Gate: request.ByOperator,
			Description: "Starts a backup and responds with its state; list the backups to see when it is complete. Later " +
				"backups to the same target copy only what changed.",
			Body: reflect.TypeFor[backupRequest](), Required: []string{"target"}, Response: reflect.TypeFor[Backup](),
			Handle: s.handle(createBackup)},
		{ID: "listBackups", Method: "GET", Path: "/v1/backups", Summary: "List the backups of the installation by target",
			Gate: request.ByOperator, Response: reflect.TypeFor[backupList](), Handle: s.handle(listBackups)},
		{ID: "pruneBackups", Method: "POST", Path: "/v1/backups:prune", Summary: "Remove backups from a target",
			Gate: request.ByOperator,
			Description: "Removes all backups from the target except the newest keep and those whose state is at most " +
				"keepDays days old, and the objects that no other backup refers to. The newest backup always stays. No " +
				"backup runs meanwhile.",
			Body: reflect.TypeFor[pruneRequest](), Required: []string{"target"}, Response: reflect.TypeFor[PrunedBackups](),
			Handle: s.handle(pruneBackups)},
	}
	return withTag("backups", all)
}

type pruneRequest struct {
	Target   string `json:"target"`
	Keep     int    `json:"keep"`
	KeepDays int    `json:"keepDays"`
}

const maxKeep = 100_000 // backups or days

func pruneBackups(c *call) (any, error) {
	p, body := c.Params(), pruneRequest{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkTarget(p, body.Target)
	p.Violations.Require(body.Keep > 0 || body.KeepDays > 0, "keep", "must be at least 1, or keepDays must be")
	p.Violations.Require(body.Keep >= 0 && body.Keep <= maxKeep, "keep", "must be between 0 and %d", maxKeep)
	p.Violations.Require(body.KeepDays >= 0 && body.KeepDays <= maxKeep, "keepDays", "must be between 0 and %d", maxKeep)
	if err := p.Err(); err != nil {
		return nil, err
	}
	if c.Backups == nil {
		return nil, noBackups()
	}
	pruned, err := c.Backups.Prune(c.Ctx, body.Target, body.Keep, body.KeepDays)
	if err != nil {
		return nil, err
	}
	return pruned, nil
}

func noBackups() error { return domain.Errorf(domain.Unimplemented, "this server makes no backups") }

func checkTarget(p *request.Params, target string) {
	p.Violations.Require(strings.TrimSpace(target) != "", "target",
		"is required: a directory of the server, or the URL of a bucket such as s3://BUCKET?prefix=backups/")
	p.Violations.Require(len(target) <= maxTarget, "target", "has %d bytes: at most %d are allowed", len(target),
		maxTarget)
}

type backupRequest struct {
	Target     string   `json:"target"`
	Recipients []string `json:"recipients"`
	References bool     `json:"references"`
}

type backupList struct {
	Backups []Backup `json:"backups"`
}

// Limits of a request for a backup.
const (
	maxTarget     = 1024
	maxRecipients = 16
	maxRecipient  = 256
)

func createBackup(c *call) (any, error) {
	p, body := c.Params(), backupRequest{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkTarget(p, body.Target)
	p.Violations.Require(len(body.Recipients) <= maxRecipients, "recipients", "has %d items: at most %d are allowed",
		len(body.Recipients), maxRecipients)
	if err := p.Err(); err != nil {
		return nil, err
	}
	if c.Backups == nil {
		return nil, noBackups()
	}
	one, err := c.Backups.Start(c.Ctx, body.Target, body.Recipients, body.References)
	if err != nil {
		return nil, err
	}
	return withLag(c, one), nil
}

func listBackups(c *call) (any, error) {
	if err := c.Params().Err(); err != nil {
		return nil, err
	}
	list := backupList{Backups: []Backup{}}
	if c.Backups != nil {
		for _, one := range c.Backups.All() {
			list.Backups = append(list.Backups, withLag(c, one))
		}
	}
	return list, nil
}

// withLag sets the number of events since the last complete backup.
func withLag(c *call, b Backup) Backup {
	position := domain.Count(c.View().Position)
	if b.EventsSince = position; b.Last != nil {
		b.EventsSince = max(0, position-b.Last.Position)
		b.Age = strconv.FormatInt(int64(max(0, c.Time.Sub(*b.Last.StateTime)).Seconds()), 10) + "s"
	}
	return b
}

// backupRules constrain the fields of backups.
var backupRules = map[string]wire.Rule{
	"Backup.state":             wire.OneOf(BackupRunning, BackupCompleted, BackupFailed),
	"BackupRequest.target":     {MaxLength: maxTarget},
	"PruneRequest.target":      {MaxLength: maxTarget},
	"BackupRequest.recipients": {MaxItems: maxRecipients, MaxLength: maxRecipient},
}

var backupTexts = map[string]string{
	"target": "Directory of the server, or URL of a bucket, that has the backups.",
	"recipients": "Recipients of age, for which the keys of the installation are encrypted, such as those that `anneal " +
		"backup key` creates.",
	"references":                 "Whether files are recorded but not copied, because their bucket keeps them.",
	"Backup.state":               "State of the newest backup.",
	"Backup.startTime":           "Time at which the newest backup began.",
	"Backup.copiedBytes":         "Bytes that the newest backup has copied.",
	"Backup.last":                "The last complete backup.",
	"eventsSince":                "Number of events after the last complete backup, which a restore would lack.",
	"CompleteBackup.id":          "ID of the backup: the time at which it began.",
	"CompleteBackup.position":    "Position of the log whose state the backup has.",
	"CompleteBackup.eventId":     "ID of the event at the position.",
	"Backup.age":                 "Time since the state of the last complete backup, which a restore would lack.",
	"PruneRequest.keep":          "Number of newest backups to keep.",
	"PruneRequest.keepDays":      "Keep backups of the last keepDays days.",
	"PrunedBackups.kept":         "IDs of the backups that stay, oldest first.",
	"PrunedBackups.removed":      "IDs of the backups that were removed.",
	"deletedObjects":             "Number of objects that were deleted, without manifests.",
	"deletedBytes":               "Size of the deleted objects in bytes.",
	"stateTime":                  "Time at which the installation had the state.",
	"CompleteBackup.endTime":     "Time at which the backup was complete.",
	"CompleteBackup.files":       "Number of files.",
	"CompleteBackup.fileBytes":   "Size of the files in bytes.",
	"CompleteBackup.copiedBytes": "Bytes that the backup added to the target.",
	"CompleteBackup.missing":     "Files and data keys that the log records but the installation lacks.",
	"BackupList.backups":         "The backups, one item for each target.",
}

var backupTypeTexts = map[string]string{
	"Backup":         "The backups of the installation to one target.",
	"CompleteBackup": "A backup that can be restored.",
	"BackupRequest":  "The target and the settings of a backup.",
	"PrunedBackups":  "The backups that were removed from a target.",
	"PruneRequest":   "The target and which of its backups stay.",
	"BackupList":     "The backups of the installation.",
}

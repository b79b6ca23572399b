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

// Backups makes and prunes backups of the installation.
type Backups interface {
	// Start starts a backup to a target. If recipients is empty, it uses the recipients of the last
	// backup to the target. references states that files are only listed, not copied, because their
	// bucket keeps them.
	Start(ctx context.Context, target string, recipients []string, references bool) (Backup, error)
	// Prune removes backups from a target. It keeps the newest keep backups, and those of the last
	// keepDays days.
	Prune(ctx context.Context, target string, keep, keepDays int) (PrunedBackups, error)
	// All returns the state of the backups to each target, ordered by target.
	All() []Backup
}

// States of a backup.
const (
	BackupRunning   = "RUNNING"
	BackupCompleted = "COMPLETED"
	BackupFailed    = "FAILED"
)

// A Backup describes the backups to one target: the newest one, and the last complete one.
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
	// EventsSince is the number of events that were recorded after the last complete backup.
	EventsSince domain.Count `json:"eventsSince"`
	// Age is the time since the StateTime of the last complete backup, such as "3600s"; "" if there
	// is none.
	Age string `json:"age,omitempty"`
}

// PrunedBackups describes which backups Prune has removed from a target.
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
			Description: "Starts a backup, and responds before it is complete; list the backups to see its state. Later " +
				"backups to the same target copy only what has changed.",
			Body: reflect.TypeFor[backupRequest](), Required: []string{"target"}, Response: reflect.TypeFor[Backup](),
			Handle: s.handle(createBackup)},
		{ID: "listBackups", Method: "GET", Path: "/v1/backups", Summary: "List the backups of the installation by target",
			Gate: request.ByOperator, Response: reflect.TypeFor[backupList](), Handle: s.handle(listBackups)},
		{ID: "pruneBackups", Method: "POST", Path: "/v1/backups:prune", Summary: "Remove backups from a target",
			Gate: request.ByOperator,
			Description: "Removes backups from the target, and the objects to which no other backup refers. The newest keep " +
				"backups and the backups of the last keepDays days are kept; the newest backup is always kept. The request is " +
				"rejected while a backup runs, and a backup is rejected while backups are being removed.",
			Body: reflect.TypeFor[pruneRequest](), Required: []string{"target"},
			Response: reflect.TypeFor[PrunedBackups](),
			Handle:   s.handle(pruneBackups)},
	}
	return withTag("backups", all)
}

type pruneRequest struct {
	Target   string `json:"target"`
	Keep     int    `json:"keep"`
	KeepDays int    `json:"keepDays"`
}

const maxKeep = 100_000 // maximum of each of the fields keep and keepDays

func pruneBackups(c *call) (any, error) {
	p, body := c.Params(), pruneRequest{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkTarget(p, body.Target)
	p.Violations.Require(body.Keep > 0 || body.KeepDays > 0, "keep", "must be at least 1, unless keepDays is at least 1")
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

func noBackups() error {
	return domain.Errorf(domain.Unimplemented, "this server is not configured to make backups")
}

func checkTarget(p *request.Params, target string) {
	p.Violations.Require(strings.TrimSpace(target) != "", "target",
		"is required: a directory of the server, or the URL of a bucket such as s3://BUCKET?prefix=backups/")
	p.Violations.Require(len(target) <= maxTarget, "target", "has %d bytes, more than the limit of %d: give a shorter "+
		"URL or path", len(target),
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

// Limits of the fields of a request for a backup.
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
	p.Violations.Require(len(body.Recipients) <= maxRecipients, "recipients", "has %d recipients, more than the limit "+
		"of %d: give fewer",
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

// withLag returns a copy of b with the number of events since the last complete backup, and its
// age.
func withLag(c *call, b Backup) Backup {
	position := domain.Count(c.View().Position)
	if b.EventsSince = position; b.Last != nil {
		b.EventsSince = max(0, position-b.Last.Position)
		b.Age = strconv.FormatInt(int64(max(0, c.Time.Sub(*b.Last.StateTime)).Seconds()), 10) + "s"
	}
	return b
}

// backupRules constrains the values of fields of backups.
var backupRules = map[string]wire.Rule{
	"Backup.state":             wire.OneOf(BackupRunning, BackupCompleted, BackupFailed),
	"BackupRequest.target":     {MaxLength: maxTarget},
	"PruneRequest.target":      {MaxLength: maxTarget},
	"BackupRequest.recipients": {MaxItems: maxRecipients, MaxLength: maxRecipient},
}

var backupTexts = map[string]string{
	"target": "Where the backups are: a directory on the server, or the URL of a bucket.",
	"recipients": "Public keys (of the encryption tool age) for which the installation's keys are " +
		"encrypted in the backup, such as those that `anneal backup key` creates.",
	"references": "Whether the backup only lists the files and does not copy them, because their " +
		"bucket keeps them.",
	"Backup.state":       "State of the newest backup to the target.",
	"Backup.startTime":   "Time at which the newest backup to the target began.",
	"Backup.copiedBytes": "Number of bytes that the newest backup has copied so far.",
	"Backup.last":        "The last complete backup to the target; absent if there is none.",
	"eventsSince": "Number of events since the last complete backup. A restore of that backup would " +
		"lose them.",
	"CompleteBackup.id":       "ID of the backup, which is the time at which it began.",
	"CompleteBackup.position": "Position of the last event that the backup contains.",
	"CompleteBackup.eventId":  "ID of the last event that the backup contains.",
	"Backup.age": "Time since the stateTime of the last complete backup, such as 3600s. A restore of " +
		"that backup would lose the changes of this time.",
	"PruneRequest.keep":     "Number of newest backups that are kept.",
	"PruneRequest.keepDays": "Number of the most recent days of which all backups are kept.",
	"PrunedBackups.kept":    "IDs of the backups that were kept, oldest first.",
	"PrunedBackups.removed": "IDs of the backups that were removed.",
	"deletedObjects":        "Number of objects that were deleted, except the manifests of the backups.",
	"deletedBytes":          "Size of the deleted objects in bytes.",
	"stateTime": "Time of the state that the backup has: a restore returns the installation to this " +
		"time.",
	"CompleteBackup.endTime":     "Time at which the backup was completed.",
	"CompleteBackup.files":       "Number of files in the backup.",
	"CompleteBackup.fileBytes":   "Size of the files in the backup, in bytes.",
	"CompleteBackup.copiedBytes": "Number of bytes that this backup has added to the target.",
	"CompleteBackup.missing": "Files and data keys to which the log refers, but which the installation had lost " +
		"before the backup.",
	"BackupList.backups": "The backups, one item for each target.",
}

var backupTypeTexts = map[string]string{
	"Backup":         "The state of the backups to one target: the newest one, and the last complete one.",
	"CompleteBackup": "A complete backup, which can be restored.",
	"BackupRequest":  "Where to write a backup, and its settings.",
	"PrunedBackups":  "The backups that were removed from a target, and those that were kept.",
	"PruneRequest":   "From which target to remove backups, and how many to keep.",
	"BackupList":     "The state of the backups to each target.",
}

package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"

	"anneal/api/rest"
	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/natsserver"
	"anneal/internal/backup"
	"anneal/internal/datadir"
)

// backupFlags are the flags for regular backups.
type backupFlags struct {
	target     string
	recipients []string
	every      time.Duration
	references bool
}

const minBackupInterval = time.Minute

func (b *backupFlags) add(f *pflag.FlagSet) {
	f.StringVar(&b.target, "backup", "",
		"directory or URL of a bucket for regular backups of the installation (default: none)")
	f.DurationVar(&b.every, "backup-every", time.Hour, "interval between two backups")
	f.StringArrayVar(&b.recipients, "backup-recipient", nil, "`RECIPIENT` for which keys are encrypted, as "+
		"'anneal backup key' prints it; repeat the flag for more")
	f.BoolVar(&b.references, "backup-references", false, "do not copy files of datasets and models, because the "+
		"bucket of --blobs keeps them")
}

func (b backupFlags) check() error {
	switch {
	case b.target != "" && len(b.recipients) == 0:
		return errors.New("--backup requires --backup-recipient: create one with `anneal backup key FILE`")
	case b.target == "" && len(b.recipients) > 0:
		return errors.New("--backup-recipient requires --backup, the directory or bucket for backups")
	case b.every < minBackupInterval:
		return fmt.Errorf("--backup-every %s must be at least %s", b.every, minBackupInterval)
	}
	return nil
}

// openBackups prepares backups and starts the regular ones of --backup. One control plane of the
// installation, the leader, runs them.
func openBackups(s *Server) (err error) {
	signer, err := logSigner(s.dir)
	if err != nil {
		return err
	}
	s.backups.Service, err = backup.NewService(backup.Source{Signer: signer, Control: s.events.Control(),
		Log: s.events.Log(), World: s.world, Files: s.blobs, DataKeys: s.vault.Records(),
		Answers: s.idempotency.Records(), Dir: s.dir,
		Version: s.flags.Node.Version, Logger: s.logger.With("part", "backup")},
		func(run func(context.Context) error) { s.services.start("backup", run) })
	if err != nil {
		return err
	}
	s.named.MustRegister(newBackupMetrics(s.backups.Service.All, s.world.Position, time.Now))
	if s.flags.backup.target == "" {
		return nil
	}
	settings := backup.Settings{Recipients: s.flags.backup.recipients, References: s.flags.backup.references}
	s.services.start("backups", func(ctx context.Context) error {
		return whileLeading(ctx, s.membership, func(ctx context.Context) error {
			return s.backups.RunEvery(ctx, s.flags.backup.target, settings, s.flags.backup.every)
		})
	})
	return nil
}

// backups implements rest.Backups, and translates between its types and those of the backup
// service.
type backups struct{ *backup.Service }

func (b *backups) Start(ctx context.Context, target string, recipients []string, references bool) (rest.Backup, error) {
	one, err := b.Service.Start(ctx, target, backup.Settings{Recipients: recipients, References: references})
	return rendered(one), err
}

func (b *backups) Prune(ctx context.Context, target string, keep, keepDays int) (rest.PrunedBackups, error) {
	which := backup.Retention{Newest: keep}
	if keepDays > 0 {
		which.Since = time.Now().AddDate(0, 0, -keepDays)
	}
	p, err := b.Service.Prune(ctx, target, which)
	return rest.PrunedBackups{Target: target, Kept: p.Kept, Removed: p.Removed, DeletedObjects: p.Objects,
		DeletedBytes: domain.Count(p.Bytes)}, err
}

func (b *backups) All() (all []rest.Backup) {
	for _, one := range b.Service.All() {
		all = append(all, rendered(one))
	}
	return all
}

func rendered(s backup.Status) rest.Backup {
	b := rest.Backup{Target: s.Target, Recipients: s.Recipients, References: s.References, State: s.State,
		StartTime: &s.StartTime, CopiedBytes: domain.Count(s.Copied), Status: domain.Status{Code: domain.OK.String()}}
	if s.Failure != "" {
		b.Status = domain.Status{Code: s.FailureCode, Message: s.Failure}
	}
	if last := s.Last; last != nil {
		b.Last = &rest.CompleteBackup{ID: last.ID, Position: domain.Count(last.Position), EventID: last.EventID,
			StateTime: &last.Time, EndTime: &last.EndTime, Files: last.Files, FileBytes: domain.Count(last.Bytes),
			CopiedBytes: domain.Count(last.Copied), Missing: last.Missing}
	}
	return b
}

// A RestoreTarget describes the installation that Restore creates.
type RestoreTarget struct {
	Dir      datadir.Dir
	Blobs    string // URL of the bucket for files; "" stands for DIR/blobs
	NATSURL  string // NATS cluster for the log; "" stands for the embedded server
	Replicas int
	TLS      *tls.Config // TLS configuration for connections to the NATS cluster
}

// Restore restores an installation from a bucket of backups.
func Restore(ctx context.Context, source *blobs.Store, target RestoreTarget, s backup.RestoreSettings) (backup.Restored,
	error) {
	s.Bucket = target.Blobs
	if target.NATSURL != "" {
		s.Cluster = &natsserver.ConnectOptions{URL: target.NATSURL, Password: os.Getenv("ANNEAL_NATS_PASSWORD"),
			IssuerSeed: os.Getenv("ANNEAL_NATS_ISSUER_SEED"), Replicas: target.Replicas, TLS: target.TLS, Log: s.Logger}
	}
	return backup.Restore(ctx, source, target.Dir, s)
}

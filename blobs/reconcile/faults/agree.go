package faults

import (
	"context"
	"errors"
	"fmt"

	"anneal/blobs"
	"anneal/blobs/reconcile"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// Restart folds the log into a new world and deletes unreferenced data without a grace period, like
// a process that starts after another process has crashed. The world follows the log until Restart
// ends, so that it includes the events that other processes append in this time.
func Restart(ctx context.Context, log eventlog.Log, store *blobs.Store, vault *secrets.Vault) (*projections.World,
	error) {
	world := projections.NewWorld()
	following, stop := context.WithCancel(ctx)
	followed := make(chan error, 1)
	go func() { followed <- world.Run(following, log) }()
	last, err := log.Last(ctx)
	if err == nil {
		err = world.WaitFor(ctx, last.Position)
	}
	if err == nil {
		err = reconcile.New(reconcile.Options{Log: log, World: world, Blobs: store, Keys: vault}).Reconcile(ctx, 0)
	}
	stop()
	if ended := <-followed; !errors.Is(ended, context.Canceled) {
		err = errors.Join(err, ended)
	}
	return world, err
}

// Agree returns an error unless the view, the files and the data keys are consistent: every file of
// a resource is stored, every sealed value can be decrypted, and every data key is in use.
func Agree(ctx context.Context, v *projections.View, store *blobs.Store, vault *secrets.Vault) error {
	if err := filesAgree(ctx, v, store); err != nil {
		return err
	}
	keys := map[string]bool{}
	sealed := func(name domain.Name, value domain.Sealed) error {
		keys[value.KeyID] = true
		_, err := vault.Open(ctx, name, value)
		return err
	}
	for row := range v.Secrets.All() {
		if !row.State.HasValue() {
			continue
		}
		if err := sealed(row.Name, row.State.Value); err != nil {
			return err
		}
	}
	for row := range projections.TableOf(v, domain.SupervisedJobs).All() {
		if t := row.State.TrackerConfig; t != nil && t.APIKey != nil {
			if err := sealed(row.Name, *t.APIKey); err != nil {
				return err
			}
		}
		if url := row.State.SealedMetricsURL; url != nil {
			if err := sealed(row.Name, *url); err != nil {
				return err
			}
		}
	}
	for row := range v.Subscriptions.All() {
		for _, secret := range []*domain.SigningSecret{row.State.Signing, row.State.Previous} {
			if secret == nil {
				continue
			}
			if err := sealed(row.Name, secret.Value); err != nil {
				return err
			}
		}
	}
	for key, err := range vault.DataKeys(ctx) {
		if err != nil {
			return err
		}
		if !keys[key.ID] {
			return fmt.Errorf("data key %s is not used by any sealed value", key.ID)
		}
	}
	return nil
}

func copies(m domain.Model) (all []domain.Files) {
	for _, made := range m.Copies {
		all = append(all, made.Files)
	}
	return all
}

// filesAgree returns an error unless every file of a resource is stored.
func filesAgree(ctx context.Context, v *projections.View, store *blobs.Store) error {
	files := func(name domain.Name, files domain.Files) error { return stored(ctx, store, name, files) }
	for row := range v.Datasets.All() {
		if err := files(row.Name, row.State.Files); err != nil {
			return err
		}
	}
	for row := range v.BatchFiles.All() {
		if err := files(row.Name, row.State.Files); err != nil {
			return err
		}
	}
	for row := range v.Jobs() {
		life := row.State.Life()
		for _, checkpoint := range life.Checkpoints {
			if err := files(row.Name, checkpoint.Files); err != nil {
				return err
			}
		}
		if life.Outcome != nil {
			if err := files(row.Name, life.Outcome.Results); err != nil {
				return err
			}
		}
	}
	for row := range v.Models.All() {
		if row.State.Upload == 0 && row.State.SourceJob == "" { // a test registered the model without files
			continue
		}
		for _, fileSet := range append([]domain.Files{row.State.Files}, copies(row.State)...) {
			if err := files(row.Name, fileSet); err != nil {
				return err
			}
		}
	}
	for row := range v.Evaluators.All() {
		all := []domain.Files{row.State.Files}
		for _, build := range row.State.Built {
			all = append(all, build.Files)
		}
		for _, fileSet := range all {
			if err := files(row.Name, fileSet); err != nil {
				return err
			}
		}
		if row.State.BuildLog != "" {
			if _, err := store.Size(ctx, row.State.BuildLog); err != nil {
				return err
			}
		}
	}
	return nil
}

// stored returns an error unless each of the files of a resource is stored and has the recorded
// size.
func stored(ctx context.Context, store *blobs.Store, name domain.Name, files domain.Files) error {
	for file, size := range files.Sizes {
		has, err := store.Size(ctx, files.Prefix+file)
		if err != nil {
			return fmt.Errorf("%s: size of %s%s: %w", name, files.Prefix, file, err)
		}
		if has != size {
			return fmt.Errorf("%s: %s%s has %d bytes, expected %d", name, files.Prefix, file, has, size)
		}
	}
	return nil
}

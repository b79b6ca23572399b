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

// Restart folds the log anew and reconciles without grace, as a process does
// that begins after another has crashed. The world follows the log until then:
// what others record meanwhile belongs to it.
func Restart(ctx context.Context, log eventlog.Log, store *blobs.Store, vault *secrets.Vault) (*projections.World, error) {
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

// Agree is why a view, the files and the data keys do not agree: a file that a
// resource has and the store has not, a value that does not open, a data key of
// no value.
func Agree(ctx context.Context, v *projections.View, store *blobs.Store, vault *secrets.Vault) error {
	files := func(name domain.Name, files domain.Files) error {
		for file, size := range files.Sizes {
			if there, err := store.Size(ctx, files.Folder+file); err != nil || there != size {
				return fmt.Errorf("%s: %s%s should have %d bytes: %d, %w", name, files.Folder, file, size, there, err)
			}
		}
		return nil
	}
	keys := map[string]bool{}
	sealed := func(name domain.Name, value domain.Sealed) error {
		keys[value.KeyID] = true
		_, err := vault.Open(ctx, name, value)
		return err
	}
	for row := range v.Datasets.All() {
		if err := files(row.Name, row.State.Files); err != nil {
			return err
		}
	}
	for row := range v.Models.All() {
		if row.State.Upload == 0 { // registered by a test
			continue
		}
		for _, one := range append([]domain.Files{row.State.Files}, copies(row.State)...) {
			if err := files(row.Name, one); err != nil {
				return err
			}
		}
	}
	for row := range v.Evaluators.All() {
		all := []domain.Files{row.State.Files}
		for _, build := range row.State.Built {
			all = append(all, build.Files)
		}
		for _, one := range all {
			if err := files(row.Name, one); err != nil {
				return err
			}
		}
		if row.State.BuildLog != "" {
			if _, err := store.Size(ctx, row.State.BuildLog); err != nil {
				return err
			}
		}
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
	}
	for key, err := range vault.DataKeys(ctx) {
		if err != nil {
			return err
		}
		if !keys[key.ID] {
			return fmt.Errorf("data key %s opens no value", key.ID)
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

package server

import (
	"context"
	"time"

	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/engines/embedded"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
	"anneal/projections/live"
	"anneal/projections/query"
	"anneal/workers/tasks"
)

// uploadTimeout is the maximum time of an upload of metrics to a URL that a job names.
const uploadTimeout = 30 * time.Second

// taskTimeout is the maximum time of one attempt of a task.
const taskTimeout = 10 * time.Minute

// openTasks starts the handlers of tasks, which also continue pending tasks. Any control plane of
// an installation can execute a task.
func (s *Server) openTasks(sealer *secrets.Vault) error {
	log := s.events.Log()
	router, err := pubsub.NewRouter(s.events.Control(),
		pubsub.RouterConfig{Timeout: taskTimeout, Log: warnings(s.logger)})
	if err != nil {
		return err
	}
	count := baseTokens()
	transfers := tasks.Transferrer{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Open: observed(s, sealer).Open,
		Client: outbound.Client(s.flags.fetchPrivate, taskTimeout), MaxFile: s.flags.maxUpload}
	var all []tasks.Task
	for _, one := range []interface {
		Handle(*pubsub.Router) error
		Task() tasks.Task
	}{
		tasks.Validator{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Count: count},
		tasks.ModelValidator{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Supports: embedded.Supports},
		tasks.ModelCopier{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now},
		tasks.Deriver{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Filter: query.CompileRowFilter, Count: count,
			Progress: s.rowsRead},
		tasks.Importer{Transferrer: transfers}, tasks.Exporter{Transferrer: transfers},
		tasks.MetricsUploader{World: s.world, Blobs: s.blobs, Client: outbound.Client(s.flags.fetchPrivate, uploadTimeout),
			Open: observed(s, sealer).Open, Now: time.Now, Logger: s.logger},
		tasks.EvaluatorBuilder{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Builder: s.code,
			Open: observed(s, sealer).Open},
	} {
		if err := one.Handle(router); err != nil {
			return err
		}
		all = append(all, one.Task())
	}
	s.services.start("pending tasks", func(ctx context.Context) error {
		return tasks.Resumption{Log: log, View: s.world.View(), Logger: s.logger, Acknowledged: log.Acknowledged}.Run(ctx,
			all...)
	})
	s.services.start("tasks", router.Run)
	return nil
}

// rowsRead records the progress of a derived dataset: that done of total rows of its source have
// been read. A total of 0 means that the derivation has ended, and removes the progress.
func (s *Server) rowsRead(dataset domain.Name, done, total int64) {
	if total == 0 {
		s.world.Live().Forget(dataset)
		return
	}
	s.world.Live().Report(dataset, live.Progress{Step: int(done), Steps: int(total), Time: time.Now()})
}

package server

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/engines/embedded"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
	"anneal/projections/live"
	"anneal/projections/query"
	"anneal/workers/tasks"
)

// openTasks starts the handlers of small pieces of work that control planes
// compete for, and takes up what is undone.
func (s *Server) openTasks(sealer *secrets.Vault) error {
	log := s.events.Log()
	router, err := pubsub.NewRouter(s.events.Control(), pubsub.RouterConfig{Timeout: 10 * time.Minute, Log: warnings(s.logger)})
	if err != nil {
		return err
	}
	count := baseTokens()
	var all []tasks.Task
	for _, one := range []interface {
		Handle(*pubsub.Router) error
		Task() tasks.Task
	}{
		tasks.Validator{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Count: count},
		tasks.ModelValidator{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Supports: embedded.Supports},
		tasks.ModelCopier{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now},
		tasks.Deriver{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Filter: query.CompileRowFilter, Count: count, Progress: s.rowsRead},
		tasks.EvaluatorBuilder{Log: log, World: s.world, Blobs: s.blobs, Now: time.Now, Builder: s.code, Open: sealer.Open},
	} {
		if err := one.Handle(router); err != nil {
			return err
		}
		all = append(all, one.Task())
	}
	s.services.start("undone tasks", func(ctx context.Context) error {
		return tasks.Resumption{Log: log, View: s.world.View(), Logger: s.logger, Acknowledged: log.Acknowledged}.Run(ctx, all...)
	})
	s.services.start("tasks", router.Run)
	return nil
}

// rowsRead keeps how far the making of a dataset is, until it is over.
func (s *Server) rowsRead(dataset domain.Name, read, of int64) {
	if of == 0 {
		s.world.Live().Forget(dataset)
		return
	}
	s.world.Live().Report(dataset, live.Progress{Step: int(read), Steps: int(of), Time: time.Now()})
}

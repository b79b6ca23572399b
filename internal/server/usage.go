package server

import (
	"context"
	"time"

	"anneal/eventlog/metering"
	"anneal/workers/rollups"
)

// openUsage starts the roll-up of usage records into hours and days, which one control plane of an
// installation does. It returns the runner, which also knows the usage that is not rolled up yet.
func openUsage(s *Server) (*rollups.Runner, error) {
	records, err := metering.NewReader(s.events.Control())
	if err != nil {
		return nil, err
	}
	runner := &rollups.Runner{Log: s.events.Log(), World: s.world, Records: records, Now: time.Now, Logger: s.logger}
	s.services.start("usage", func(ctx context.Context) error {
		return whileLeading(ctx, s.membership, runner.Run)
	})
	return runner, nil
}

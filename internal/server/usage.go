package server

import (
	"context"
	"time"

	"anneal/eventlog/metering"
	"anneal/workers/rollups"
)

// openUsage starts rolling up usage, and returns what shows the usage that is not rolled up. One control
// plane of an installation rolls up.
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

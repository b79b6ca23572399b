package server

import (
	"context"
	"fmt"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsconn"
	"anneal/internal/datadir"
	"anneal/projections"
)

// ReadLog calls read with the log of a data directory: of a running server, the mirror for readers, and of
// a stopped server, the files. It changes nothing. While it reads the files, the server cannot start.
func ReadLog(ctx context.Context, dir datadir.Dir, read func(projections.Reader) error) error {
	if err := dir.CheckExists(); err != nil {
		return err
	}
	release, running := disk.LockDir(string(dir))
	if running == nil {
		defer release()
		if hasLog(dir) {
			return read(eventlog.Files(dir.Path("nats")))
		}
	}
	operator, err := datadir.ReadContext(dir.Path("operator.json"))
	if err != nil {
		if running == nil {
			return domain.Errorf(domain.NotFound, "%s has no event log: give the data directory of a server", dir)
		}
		return running
	}
	log, closeLog, err := openMirror(ctx, operator)
	if err != nil {
		return err
	}
	defer closeLog()
	return read(log)
}

// openMirror opens the mirror of the log of a server for readers.
func openMirror(ctx context.Context, operator datadir.Context) (log *eventlog.JetStream, closeLog func(), err error) {
	options, err := operator.NATSOptions()
	if err != nil {
		return nil, nil, err
	}
	conn, err := natsconn.Connect(operator.NATSURL, options...)
	if err != nil {
		return nil, nil, fmt.Errorf("connect to the log at %s: %w", operator.NATSURL, err)
	}
	if log, err = eventlog.OpenReader(ctx, conn); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return log, conn.Close, nil
}

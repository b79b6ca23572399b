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

// ReadLog calls read with the log of a data directory. If the server is running, it reads the
// mirror of the log; otherwise it reads the files, and the server cannot start meanwhile. It
// changes nothing.
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
			return domain.Errorf(domain.NotFound, "%s has no event log: give the data directory of a server with "+
				"--data", dir)
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

// openMirror connects to a server's mirror of the log, as a reader with the operator's credentials.
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

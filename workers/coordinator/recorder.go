package coordinator

import (
	"context"
	"errors"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// A recorder executes commands on behalf of nodes, and appends their events to the log.
type recorder struct {
	log   eventlog.Log
	world *projections.World // follows log
	now   func() time.Time
}

// do records a command that a node caused, and waits until the world has the event.
func (r recorder) do(ctx context.Context, node string, intent domain.Intent) error {
	request := eventlog.Request{Time: r.now(), Actor: string(nodeName(node))}
	change, err := eventlog.Do(ctx, r.log, r.world, request, intent)
	if err != nil {
		return err
	}
	return r.world.WaitFor(ctx, change.Position())
}

// doJob records a command that a node caused on a job of any kind, and waits until the world has
// the event. It returns an error when the job was deleted, also when another job has its name.
func (r recorder) doJob(ctx context.Context, node string, j job, command domain.Command[domain.JobLife]) error {
	return r.do(ctx, node, domain.IntendJob(j.Name, command).Of(j.Event))
}

// catchUp waits until the world has the last event of the log, which another control plane may have
// recorded.
func (r recorder) catchUp(ctx context.Context) error {
	last, err := r.log.Last(ctx)
	if err != nil {
		return err
	}
	return r.world.WaitFor(ctx, last.Position)
}

func nodeName(id string) domain.Name { return domain.NewName(domain.System, "nodes", id) }

// isRefused reports whether the domain refused a command, as opposed to a transient failure.
func isRefused(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) && failure.Code != domain.Aborted && failure.Code != domain.Unavailable
}

// truncate escapes the control characters of a text that a node wrote, cuts the text after maxBytes
// bytes, and appends "…" to text that it has cut.
func truncate(text string) string {
	const maxBytes = 2000
	text = domain.Printable(text)
	if len(text) > maxBytes {
		return strings.ToValidUTF8(text[:maxBytes], "") + "…"
	}
	return text
}

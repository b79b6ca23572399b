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

// A recorder executes commands that nodes cause.
type recorder struct {
	log   eventlog.Log
	world *projections.World // state of all resources; must fold the events of log: see World.Run
	now   func() time.Time
}

// do executes a command that a node caused, and waits until the world has its event.
func (r recorder) do(ctx context.Context, node string, intent domain.Intent) error {
	request := eventlog.Request{Time: r.now(), Actor: actorOf(node, intent.Name),
		Trace: projections.TraceOf(r.world, intent.Name)}
	change, err := eventlog.Do(ctx, r.log, r.world, request, intent)
	if err != nil {
		return err
	}
	return r.world.WaitFor(ctx, change.Position())
}

// doIfChanged is do for a command that seldom has anything to record. If it has nothing to record in
// the world, doIfChanged does not wait for events of the resource that are not in the world yet.
func (r recorder) doIfChanged(ctx context.Context, node string, intent domain.Intent) error {
	state, _ := r.world.Row(intent.Name)
	if record, err := intent.Decide(state, r.now()); err == nil && record.Type == "" {
		return nil
	}
	return r.do(ctx, node, intent)
}

// doAll executes commands on resources of one account that a node caused, in order: see
// eventlog.DoAll. It waits until the world has their events, and returns the error of each command.
func (r recorder) doAll(ctx context.Context, node string, intents ...domain.Intent) []error {
	request := eventlog.Request{Time: r.now(), Actor: actorOf(node, intents[0].Name), Trace: r.traceOf(intents)}
	changes, errs := eventlog.DoAll(ctx, r.log, r.world, request, intents...)
	for i := range changes {
		if errs[i] == nil {
			errs[i] = r.world.WaitFor(ctx, changes[i].Position())
		}
	}
	return errs
}

// doJob executes a command on a job of any kind that a node caused, and waits until the world has
// its event. It returns an error when the job was deleted, even if another job now has its name.
func (r recorder) doJob(ctx context.Context, node string, j job, command domain.Command[domain.JobLife]) error {
	return r.do(ctx, node, domain.IntendJob(j.Name, command).Of(j.Event))
}

// catchUp waits until the world has the newest event of the log, which another control plane may
// have appended.
func (r recorder) catchUp(ctx context.Context) error {
	last, err := r.log.Last(ctx)
	if err != nil {
		return err
	}
	return r.world.WaitFor(ctx, last.Position)
}

func nodeName(id string) domain.Name { return domain.NewName(domain.System, "nodes", id) }

// describeNode names a node in messages that are stored: see domain.NodeMask.
func describeNode(id string) string { return "node " + string(nodeName(id)) }

// agentActor is the actor of changes of an account's resources that nodes cause. It is not the name
// of the node, which only the operator may know: a proof of an event discloses its actor. The event
// that started the attempt or placed the replica has the node.
const agentActor = "agent"

// actorOf returns the actor of a change of a resource that a node causes.
func actorOf(node string, resource domain.Name) string {
	if resource.Account() == domain.System {
		return string(nodeName(node))
	}
	return agentActor
}

// isRefused reports whether err refuses a command for good, and is not a failure after which a
// retry can succeed.
func isRefused(err error) bool {
	var failure *domain.Error
	return errors.As(err, &failure) && failure.Code != domain.Aborted && failure.Code != domain.Unavailable
}

// truncate prepares a text from a node for an event: it escapes control characters, and shortens
// the text to maxBytes bytes and "…".
func truncate(text string) string {
	const maxBytes = 2000
	text = domain.Printable(text)
	if len(text) > maxBytes {
		return strings.ToValidUTF8(text[:maxBytes], "") + "…"
	}
	return text
}

package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/natsserver"
	"anneal/projections"
)

// Sessions lists and closes the NATS connections of agents.
type Sessions interface {
	NodeSessions(ctx context.Context) ([]natsserver.NodeSession, error)
	CloseSession(ctx context.Context, s natsserver.NodeSession) error
}

// A JoinToken permits an agent to enroll.
type JoinToken struct {
	ID   string
	Node string // the only node that may use the token; "" permits any node
}

// An Admission authenticates agents. At its first connection, an agent enrolls with a join token:
// the Admission records the public half of the agent's NKey in the state of its node. After that,
// only the key authenticates the agent, and no token can enroll another agent as the node. Several
// admissions may run concurrently, because the log accepts one key for each node.
type Admission struct {
	Log      eventlog.Log
	World    *projections.World // follows Log
	Sessions Sessions           // closes earlier connections of an agent; nil leaves them open
	// ReadToken verifies a join token.
	ReadToken func(token string, now time.Time) (JoinToken, error)
	Now       func() time.Time
	Logger    *slog.Logger
}

// logTimeout is how long Admit waits for the log. It leaves time for the rest of an authorization, for
// which the NATS server waits 5 seconds.
const logTimeout = 1500 * time.Millisecond

// Admit implements natsserver.VerifyNode. It keeps only the newest of several connections with one
// key, so that an agent that lost its connection need not wait until the NATS servers notice the
// loss.
//
// While the log does not respond, for example without a quorum, Admit accepts the agents whose
// enrollment the world has. So the agents of a failed NATS server connect to another one and continue to
// serve. Run closes the connections of nodes that were revoked as soon as the log responds.
func (a *Admission) Admit(ctx context.Context, login natsserver.NodeLogin) error {
	if login.PublicKey == "" {
		return fmt.Errorf("agent of node %s has no key: run the same release of anneal on all machines", login.Node)
	}
	silent, behind := a.catchUpWithin(ctx, logTimeout)
	if behind != nil && !silent {
		return fmt.Errorf("the control plane is behind the log, at position %d: the agent tries again: %w",
			a.World.Position(), behind)
	}
	if !a.enrolled(login.Node, login.PublicKey) {
		if behind != nil {
			return fmt.Errorf("the log does not respond, and the enrollment of node %s is not known: the agent tries again: %w",
				login.Node, behind)
		}
		if err := a.enroll(ctx, login); err != nil {
			a.Logger.Warn("agent refused", "node", login.Node, "key", login.PublicKey, "error", err)
			return err
		}
	}
	if behind != nil {
		a.Logger.Warn("the log does not respond: the agent was authenticated by the enrollment that is known",
			"node", login.Node, "position", a.World.Position(), "error", behind)
	}
	if a.Sessions == nil {
		return nil
	}
	if err := a.replace(ctx, login.Session); err != nil {
		a.Logger.Warn("earlier connections of a node not closed", "node", login.Node, "error", err)
	}
	return nil
}

// catchUpWithin waits until the world has the events that the log has now. silent reports whether the log
// did not respond within the limit.
func (a *Admission) catchUpWithin(ctx context.Context, limit time.Duration) (silent bool, err error) {
	asked, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	last, err := a.Log.Last(asked)
	if err != nil {
		return true, err
	}
	return false, a.World.WaitFor(ctx, last.Position)
}

func (a *Admission) catchUp(ctx context.Context) error {
	return recorder{log: a.Log, world: a.World, now: a.Now}.catchUp(ctx)
}

// enrolled reports whether key is the recorded key of the node.
func (a *Admission) enrolled(node, key string) bool {
	row, ok := a.World.View().Nodes.Get(nodeName(node))
	return ok && key != "" && row.State.Access.PublicKey == key
}

func (a *Admission) enroll(ctx context.Context, login natsserver.NodeLogin) error {
	if login.Token == "" {
		return fmt.Errorf("the agent's key is not the key of node %s, and the agent has no join token: create a token with "+
			"`anneal node token`", login.Node)
	}
	token, err := a.ReadToken(login.Token, a.Now())
	if err != nil {
		return err
	}
	if token.Node != "" && token.Node != login.Node {
		return fmt.Errorf("the join token is for node %s, not for node %s", token.Node, login.Node)
	}
	for row := range a.World.View().Nodes.All() {
		if row.State.State == domain.NodeRevoked && row.State.Access.JoinToken == token.ID {
			return fmt.Errorf("the join token was revoked together with node %s: create another token with `anneal node token`",
				row.Name.ID())
		}
	}
	return a.Enroll(ctx, login.Node, login.PublicKey, token.ID)
}

// Enroll records the key of a node's agent. token is the ID of the join token.
func (a *Admission) Enroll(ctx context.Context, node, key, token string) error {
	enroll := domain.EnrollNode{PublicKey: key, JoinToken: token}
	r := recorder{log: a.Log, world: a.World, now: a.Now}
	return r.do(ctx, node, domain.Intend(domain.Nodes, nodeName(node), enroll))
}

// replace closes all connections of a node except the connection of its new session.
func (a *Admission) replace(ctx context.Context, newest natsserver.NodeSession) error {
	sessions, err := a.Sessions.NodeSessions(ctx)
	if err != nil {
		return err
	}
	for _, one := range sessions {
		if one.Node == newest.Node && (one.Server != newest.Server || one.ID != newest.ID) {
			err = errors.Join(err, a.Sessions.CloseSession(ctx, one))
		}
	}
	return err
}

// Admission.Run checks all connections every checkInterval, after checkRetry if a check failed, and
// when a node's key changes. It handles together the changes of the world that follow each other
// within checkDelay.
const (
	checkInterval = 15 * time.Second
	checkRetry    = time.Second
	checkDelay    = 100 * time.Millisecond
)

// Run closes the connections of agents whose nodes were revoked or deleted, and all but the newest
// connection of each node, until ctx is done.
func (a *Admission) Run(ctx context.Context) error {
	due := time.NewTimer(0)
	defer due.Stop()
	pause := time.NewTimer(0)
	defer pause.Stop()
	keys := map[domain.Name]string{}
	for {
		changed := a.World.Changed(a.World.Position())
		now := a.keys()
		for node, key := range keys {
			if now[node] != key { // revoked, deleted, or enrolled again
				due.Reset(0)
			}
		}
		keys = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			pause.Reset(checkDelay)
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
		case <-due.C:
			next := checkInterval
			if err := a.Sweep(ctx); err != nil && ctx.Err() == nil {
				a.Logger.Warn("connections of nodes not checked, will retry", "error", err)
				next = checkRetry
			}
			due.Reset(next)
		}
	}
}

func (a *Admission) keys() map[domain.Name]string {
	keys := map[domain.Name]string{}
	for row := range a.World.View().Nodes.All() {
		if key := row.State.Access.PublicKey; key != "" {
			keys[row.Name] = key
		}
	}
	return keys
}

// Sweep closes every connection whose key is not the recorded key of its node, and all but the
// newest connection of each node. It lists the connections before it catches up with the log, so
// that the world has the enrollment of every listed agent.
func (a *Admission) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	sessions, err := a.Sessions.NodeSessions(ctx)
	if err != nil || len(sessions) == 0 {
		return err
	}
	if err := a.catchUp(ctx); err != nil {
		return err
	}
	newest := map[string]natsserver.NodeSession{}
	for _, one := range sessions {
		if kept, ok := newest[one.Node]; !ok || one.Start.After(kept.Start) {
			newest[one.Node] = one
		}
	}
	for _, one := range sessions {
		if a.enrolled(one.Node, one.PublicKey) && newest[one.Node] == one {
			continue
		}
		a.Logger.Warn("connection of a node closed: the node was revoked or deleted, or has a newer connection",
			"node", one.Node, "key", one.PublicKey)
		err = errors.Join(err, a.Sessions.CloseSession(ctx, one))
	}
	return err
}

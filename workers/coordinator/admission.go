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

// Sessions lists and closes the NATS connections of agents. natsserver.Connection implements it.
type Sessions interface {
	NodeSessions(ctx context.Context) ([]natsserver.NodeSession, error)
	CloseSession(ctx context.Context, s natsserver.NodeSession) error
}

// A JoinToken is a verified token that permits an agent to enroll a node.
type JoinToken struct {
	ID   string
	Node string // ID of the only node that it may enroll; "" for any node
}

// An Admission authenticates agents. At its first connection, an agent presents a join token, and
// the Admission records the agent's public NKey in the state of the node (enrollment). From then on
// only that key authenticates the agent, and no token can enroll the node again. Several control
// planes may run an Admission, because the log accepts one key for each node.
type Admission struct {
	Log      eventlog.Log
	World    *projections.World // state of all resources; must fold the events of Log: see World.Run
	Sessions Sessions           // closes earlier connections of an agent; nil leaves them open
	// ReadToken verifies the text of a join token.
	ReadToken func(token string, now time.Time) (JoinToken, error)
	Now       func() time.Time
	Logger    *slog.Logger
}

// logTimeout is how long Admit waits for the log. The NATS server waits 5 seconds for the whole
// authorization.
const logTimeout = 1500 * time.Millisecond

// Admit implements natsserver.VerifyNode. Of several connections with the same key it keeps only
// the newest one, so that an agent that lost its connection can connect again before the NATS
// servers notice the loss.
//
// While the log does not respond, for example without a quorum, Admit accepts the agents that are
// enrolled according to the world. So the agents of a failed NATS server can connect to another one
// and continue to serve. When the log responds again, Run closes the connections of nodes that were
// revoked.
func (a *Admission) Admit(ctx context.Context, login natsserver.NodeLogin) error {
	if login.PublicKey == "" {
		return fmt.Errorf("the agent of node %s has no key: run the same release of anneal on all machines", login.Node)
	}
	silent, behind := a.catchUpWithin(ctx, logTimeout)
	if behind != nil && !silent {
		return fmt.Errorf("the control plane has not read the log beyond position %d yet, so it does not know whether "+
			"the node is enrolled; the agent tries again: %w",
			a.World.Position(), behind)
	}
	if !a.enrolled(login.Node, login.PublicKey) {
		if behind != nil {
			return fmt.Errorf("the log does not respond, and this control plane does not know whether node %s is enrolled; "+
				"the agent tries again: %w",
				login.Node, behind)
		}
		if err := a.enroll(ctx, login); err != nil {
			a.Logger.Warn("refused the connection of an agent", "node", login.Node, "key", login.PublicKey, "error", err)
			return err
		}
	}
	if behind != nil {
		a.Logger.Warn("the log does not respond: accepted an agent whose key was enrolled before; if its node was "+
			"revoked since, it is disconnected later",
			"node", login.Node, "position", a.World.Position(), "error", behind)
	}
	if a.Sessions == nil {
		return nil
	}
	if err := a.replace(ctx, login.Session); err != nil {
		a.Logger.Warn("cannot close the earlier connections of a node: trying again", "node", login.Node, "error", err)
	}
	return nil
}

// catchUpWithin waits until the world has all events of the log. silent reports that the log did
// not respond within limit; err is set whenever the world did not catch up.
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

// enrolled reports whether key is the recorded public key of the node.
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

// Enroll records the public key of a node's agent. token is the ID of the join token.
func (a *Admission) Enroll(ctx context.Context, node, key, token string) error {
	enroll := domain.EnrollNode{PublicKey: key, JoinToken: token}
	r := recorder{log: a.Log, world: a.World, now: a.Now}
	return r.do(ctx, node, domain.Intend(domain.Nodes, nodeName(node), enroll))
}

// replace closes all connections of a node except the one of its newest session.
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

// Run checks all connections every checkInterval, when the key of a node changes, and checkRetry
// after a failed check. It handles changes of the world within checkDelay together.
const (
	checkInterval = 15 * time.Second
	checkRetry    = time.Second
	checkDelay    = 100 * time.Millisecond
)

// Run closes the connections of agents whose nodes were revoked or deleted, until ctx is done. Of
// several connections of a node it closes all but the newest.
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
			if now[node] != key { // the node was revoked, deleted, or enrolled again
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
				a.Logger.Warn("cannot check the connections of nodes: trying again; agents of revoked nodes stay connected "+
					"until then", "error", err)
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
// newest connection of each node. It lists the connections before the world catches up with the
// log, so that the world has the enrollment of each.
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
		a.Logger.Warn("closed the connection of an agent: its node was revoked or deleted, or has a newer connection",
			"node", one.Node, "key", one.PublicKey)
		err = errors.Join(err, a.Sessions.CloseSession(ctx, one))
	}
	return err
}

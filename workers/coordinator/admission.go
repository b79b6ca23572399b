package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/projections"
)

// Sessions are the connections of agents.
type Sessions interface {
	NodeSessions(ctx context.Context) ([]eventlog.NodeSession, error)
	CloseSession(ctx context.Context, s eventlog.NodeSession) error
}

// A JoinToken lets an agent enrol.
type JoinToken struct {
	ID   string
	Node string // the only one that may use it; "" is any
}

// An Admission lets agents in. At its first contact an agent enrols with a join
// token: the public half of its NKey is recorded on its node. From then on the
// key alone lets it in, and no token takes its name. The log is what is decided
// on: several admissions may work at once.
type Admission struct {
	Log      eventlog.Log
	World    *projections.World // which follows Log
	Sessions Sessions           // nil closes none
	// ReadToken verifies a join token, and answers what it is good for.
	ReadToken func(token string, now time.Time) (JoinToken, error)
	Now       func() time.Time
	Logger    *slog.Logger
}

// Admit is an eventlog.VerifyNode. Of several connections with one key the
// newest stays: an agent that was cut off need not wait until the servers miss
// the connection it had.
func (a *Admission) Admit(ctx context.Context, login eventlog.NodeLogin) error {
	if login.PublicKey == "" {
		return fmt.Errorf("the agent of node %s has no key: run the same release of anneal on all machines", login.Node)
	}
	if err := a.catchUp(ctx); err != nil {
		return err
	}
	if !a.enrolled(login.Node, login.PublicKey) {
		if err := a.enroll(ctx, login); err != nil {
			a.Logger.Warn("an agent is refused", "node", login.Node, "key", login.PublicKey, "error", err)
			return err
		}
	}
	if a.Sessions == nil {
		return nil
	}
	if err := a.replace(ctx, login.Session); err != nil {
		a.Logger.Warn("earlier connections of a node could not be closed", "node", login.Node, "error", err)
	}
	return nil
}

// catchUp waits until the world shows what any control plane has recorded.
func (a *Admission) catchUp(ctx context.Context) error {
	last, err := a.Log.Last(ctx)
	if err != nil {
		return err
	}
	return a.World.WaitFor(ctx, last.Position)
}

// enrolled tells whether the key is the node's.
func (a *Admission) enrolled(node, key string) bool {
	row, ok := a.World.View().Nodes.Get(nodeName(node))
	return ok && key != "" && row.State.Access.PublicKey == key
}

func (a *Admission) enroll(ctx context.Context, login eventlog.NodeLogin) error {
	if login.Token == "" {
		return errors.New("its key is not the node's, and it has no token to join with")
	}
	token, err := a.ReadToken(login.Token, a.Now())
	if err != nil {
		return err
	}
	if token.Node != "" && token.Node != login.Node {
		return fmt.Errorf("its token is for node %s", token.Node)
	}
	for row := range a.World.View().Nodes.All() {
		if row.State.State == domain.NodeRevoked && row.State.Access.JoinToken == token.ID {
			return fmt.Errorf("its token was revoked together with node %s", row.Name.ID())
		}
	}
	return a.Enroll(ctx, login.Node, login.PublicKey, token.ID)
}

// Enroll records the key of a node's agent.
func (a *Admission) Enroll(ctx context.Context, node, key, token string) error {
	request := eventlog.Request{Time: a.Now(), Actor: string(nodeName(node))}
	result, err := eventlog.Do(ctx, a.Log, a.World, request, domain.Intend(domain.Nodes, nodeName(node), domain.EnrollNode{PublicKey: key, JoinToken: token}))
	if err != nil {
		return err
	}
	return a.World.WaitFor(ctx, result.Position())
}

// replace closes the other connections of a node.
func (a *Admission) replace(ctx context.Context, by eventlog.NodeSession) error {
	sessions, err := a.Sessions.NodeSessions(ctx)
	if err != nil {
		return err
	}
	for _, one := range sessions {
		if one.Node == by.Node && (one.Server != by.Server || one.ID != by.ID) {
			err = errors.Join(err, a.Sessions.CloseSession(ctx, one))
		}
	}
	return err
}

// How often all connections are held against the world: after a change of the
// keys at once, else now and then, and soon again where that failed.
const (
	checkSessionsEvery = 15 * time.Second
	checkSessionsAgain = time.Second
	checkSessionsPause = 100 * time.Millisecond // between two looks at a world that changes all the time
)

// Run closes the connections of agents whose nodes were revoked or removed, and
// all but the newest of each node, until ctx is done.
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
			if now[node] != key { // revoked, removed, or replaced since
				due.Reset(0)
			}
		}
		keys = now
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
			pause.Reset(checkSessionsPause)
			select {
			case <-pause.C:
			case <-ctx.Done():
			}
		case <-due.C:
			next := checkSessionsEvery
			if err := a.Sweep(ctx); err != nil && ctx.Err() == nil {
				a.Logger.Warn("the connections of nodes could not be checked, which is tried again", "error", err)
				next = checkSessionsAgain
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

// Sweep closes every connection that the world does not vouch for. An agent
// that is connected was let in at an earlier position: so the world is caught
// up with after they are listed.
func (a *Admission) Sweep(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, handleWithin)
	defer cancel()
	sessions, err := a.Sessions.NodeSessions(ctx)
	if err != nil || len(sessions) == 0 {
		return err
	}
	if err := a.catchUp(ctx); err != nil {
		return err
	}
	newest := map[string]eventlog.NodeSession{}
	for _, one := range sessions {
		if kept, ok := newest[one.Node]; !ok || one.Start.After(kept.Start) {
			newest[one.Node] = one
		}
	}
	for _, one := range sessions {
		if a.enrolled(one.Node, one.PublicKey) && newest[one.Node] == one {
			continue
		}
		a.Logger.Warn("a node's connection is closed: it was revoked, or has another connection", "node", one.Node, "key", one.PublicKey)
		err = errors.Join(err, a.Sessions.CloseSession(ctx, one))
	}
	return err
}

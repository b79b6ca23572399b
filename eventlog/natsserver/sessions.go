package natsserver

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// A NodeSession is a connection of an agent.
type NodeSession struct {
	Server    string // ID of the NATS server that holds it
	ID        uint64 // on that server
	Node      string // its ID
	PublicKey string // that the agent authenticated with
	Start     time.Time
}

// sessionUser is the name under which the servers know an agent: the node and
// the key, so that the list of connections tells both.
func sessionUser(node, key string) string { return node + "/" + key }

const (
	sessionsPerPage = 1024
	sessionsWithin  = 2 * time.Second
	sessionsQuiet   = 400 * time.Millisecond // after an answer, no other server answers any more
)

// NodeSessions lists the connections of all agents, on every server that
// answers.
func (c *Connection) NodeSessions(ctx context.Context) (all []NodeSession, err error) {
	for offset := 0; ; offset += sessionsPerPage {
		more, err := c.sessionPage(ctx, offset, &all)
		if err != nil || !more {
			return all, err
		}
	}
}

// sessionPage adds the connections of every server from an offset on, and tells
// whether some server has more.
func (c *Connection) sessionPage(ctx context.Context, offset int, all *[]NodeSession) (more bool, err error) {
	question, err := json.Marshal(server.ConnzEventOptions{ConnzOptions: server.ConnzOptions{
		Username: true, Account: "AGENTS", Sort: server.ByCid, Offset: offset, Limit: sessionsPerPage}})
	if err != nil {
		return false, err
	}
	inbox := c.warden.NewInbox()
	answers, err := c.warden.SubscribeSync(inbox)
	if err != nil {
		return false, fmt.Errorf("eventlog: listing the connections of nodes: %w", err)
	}
	defer func() { _ = answers.Unsubscribe() }()
	if err := c.warden.PublishRequest("$SYS.REQ.SERVER.PING.CONNZ", inbox, question); err != nil {
		return false, fmt.Errorf("eventlog: listing the connections of nodes: %w", err)
	}
	wait := sessionsWithin
	for answered := 0; c.servers == 0 || answered < c.servers; answered++ {
		within, cancel := context.WithTimeout(ctx, wait)
		m, err := answers.NextMsgWithContext(within)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded) && answered > 0 && ctx.Err() == nil:
			return more, nil
		case err != nil:
			return false, fmt.Errorf("eventlog: listing the connections of nodes: %w", err)
		}
		wait = sessionsQuiet
		var page struct {
			Server server.ServerInfo `json:"server"`
			Data   server.Connz      `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &page); err != nil {
			return false, fmt.Errorf("eventlog: listing the connections of nodes: %w", err)
		}
		more = more || offset+len(page.Data.Conns) < page.Data.Total
		for _, one := range page.Data.Conns {
			if node, key, is := strings.Cut(one.AuthorizedUser, "/"); is {
				*all = append(*all, NodeSession{page.Server.ID, one.Cid, node, key, one.Start})
			}
		}
	}
	return more, nil
}

// CloseSession closes an agent's connection. It is no error when it is gone.
func (c *Connection) CloseSession(ctx context.Context, s NodeSession) error {
	question, err := json.Marshal(server.KickClientReq{CID: s.ID})
	if err != nil {
		return err
	}
	_, err = c.warden.RequestWithContext(ctx, "$SYS.REQ.SERVER."+s.Server+".KICK", question)
	if errors.Is(err, nats.ErrNoResponders) { // the server is gone, and its connections with it
		return nil
	}
	return err
}

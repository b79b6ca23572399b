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

// A NodeSession is a connection of a node's agent to a NATS server.
type NodeSession struct {
	Server    string // ID of the NATS server
	ID        uint64 // ID of the connection on that server
	Node      string // ID of the agent's node
	PublicKey string // NKey with which the agent authenticated
	Start     time.Time
}

// sessionUser returns the user name under which NATS servers list the connection of an agent with
// the given NKey.
func sessionUser(node, key string) string { return node + "/" + key }

const (
	sessionsPerPage = 1024
	sessionsWithin  = 2 * time.Second
	sessionsQuiet   = 400 * time.Millisecond // how long to wait for a further server after each reply
)

// NodeSessions returns the connections of all agents, from all NATS servers that reply.
func (c *Connection) NodeSessions(ctx context.Context) (all []NodeSession, err error) {
	for offset := 0; ; offset += sessionsPerPage {
		more, err := c.sessionPage(ctx, offset, &all)
		if err != nil || !more {
			return all, err
		}
	}
}

// sessionPage appends one page of each server's list of connections to *all. The page begins at
// offset. more reports whether a server has further pages.
func (c *Connection) sessionPage(ctx context.Context, offset int, all *[]NodeSession) (more bool, err error) {
	request, err := json.Marshal(server.ConnzEventOptions{ConnzOptions: server.ConnzOptions{
		Username: true, Account: "AGENTS", Sort: server.ByCid, Offset: offset, Limit: sessionsPerPage}})
	if err != nil {
		return false, err
	}
	inbox := c.warden.NewInbox()
	replies, err := c.warden.SubscribeSync(inbox)
	if err != nil {
		return false, fmt.Errorf("eventlog: list the connections of nodes: %w", err)
	}
	defer func() { _ = replies.Unsubscribe() }()
	if err := c.warden.PublishRequest("$SYS.REQ.SERVER.PING.CONNZ", inbox, request); err != nil {
		return false, fmt.Errorf("eventlog: list the connections of nodes: %w", err)
	}
	wait := sessionsWithin
	for replied := 0; c.servers == 0 || replied < c.servers; replied++ {
		within, cancel := context.WithTimeout(ctx, wait)
		m, err := replies.NextMsgWithContext(within)
		cancel()
		switch {
		case errors.Is(err, context.DeadlineExceeded) && replied > 0 && ctx.Err() == nil:
			return more, nil
		case err != nil:
			return false, fmt.Errorf("eventlog: list the connections of nodes: %w", err)
		}
		wait = sessionsQuiet
		var page struct {
			Server server.ServerInfo `json:"server"`
			Data   server.Connz      `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &page); err != nil {
			return false, fmt.Errorf("eventlog: list the connections of nodes: %w", err)
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

// CloseSession closes the connection of an agent. It returns nil when the connection is closed
// already.
func (c *Connection) CloseSession(ctx context.Context, s NodeSession) error {
	request, err := json.Marshal(server.KickClientReq{CID: s.ID})
	if err != nil {
		return err
	}
	_, err = c.warden.RequestWithContext(ctx, "$SYS.REQ.SERVER."+s.Server+".KICK", request)
	if errors.Is(err, nats.ErrNoResponders) { // no such server: it has stopped, and with it the connection
		return nil
	}
	return err
}

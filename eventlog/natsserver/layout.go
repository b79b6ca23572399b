package natsserver

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/eventlog/integrity"
	"anneal/eventlog/natsconn"
)

var errUnknownLayout = errors.New("the NATS server acknowledges messages that are not in its block files, so they " +
	"cannot be synced to disk")

const layoutStream = "LAYOUT"

// checkLayout checks how the NATS server stores messages. It returns an error unless a message that
// the server acknowledged is in a block file of the directory that diskSync syncs. Otherwise a sync
// of these files would not make messages durable.
func (s *Server) checkLayout(ctx context.Context, opts Options) error {
	js := s.js
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name:        layoutStream,
		Description: "Temporary stream to test how messages are stored; deleted before the server is ready",
		Subjects:    []string{"control.layout"},
		Storage:     jetstream.FileStorage,
	})
	if err != nil {
		return fmt.Errorf("eventlog: check the layout of NATS block files: %w", err)
	}
	message := []byte(rand.Text() + rand.Text())
	_, err = js.Publish(ctx, "control.layout", message)
	inBlocks := opts.inBlocks
	if inBlocks == nil {
		inBlocks = inBlockFiles
	}
	known := err == nil && inBlocks(integrity.BlockDir(opts.Dir, "CONTROL", layoutStream), message)
	if deleted := js.DeleteStream(ctx, layoutStream); err != nil || deleted != nil {
		return fmt.Errorf("eventlog: check the layout of NATS block files: %w", errors.Join(err, deleted))
	}
	if !known {
		return errUnknownLayout
	}
	return nil
}

// inBlockFiles reports whether a block file in the directory dir contains message.
func inBlockFiles(dir string, message []byte) bool {
	paths, _ := filepath.Glob(filepath.Join(dir, "*.blk"))
	return slices.ContainsFunc(paths, func(path string) bool {
		content, err := os.ReadFile(path)
		return err == nil && bytes.Contains(content, message)
	})
}

// serversSubject is the subject in the system account on which all servers of a cluster report
// their JetStream configuration.
const serversSubject = "$SYS.REQ.SERVER.PING.JSZ"

// UnsyncedServers returns the names of the servers of the NATS cluster at url that acknowledge a
// message before it is synced to disk. password is that of the NATS user "warden"; config is nil
// without TLS. It returns an error if the cluster cannot be reached or no server replies.
func UnsyncedServers(ctx context.Context, url, password string, config *tls.Config) ([]string, error) {
	options := []nats.Option{nats.UserInfo("warden", password)}
	if config != nil {
		options = append(options, nats.Secure(config))
	}
	conn, err := natsconn.Connect(url, options...)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", url, err)
	}
	defer conn.Close()
	return unsyncedServers(ctx, conn, serversSubject)
}

// silence is how long unsyncedServers waits for a further server after each reply.
const silence = 500 * time.Millisecond

// unsyncedServers requests the configuration of all NATS servers of a cluster on subject. It
// returns the names of the servers that acknowledge a message before it is synced to disk. It
// returns an error when no server replies.
func unsyncedServers(ctx context.Context, nc *nats.Conn, subject string) (unsynced []string, err error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, []byte("{}")); err != nil {
		return nil, err
	}
	for replies := 0; ; replies++ {
		once, cancel := context.WithTimeout(ctx, silence)
		m, err := sub.NextMsgWithContext(once)
		cancel()
		if err != nil && replies > 0 && ctx.Err() == nil {
			slices.Sort(unsynced)
			return unsynced, nil
		}
		if err != nil {
			return nil, fmt.Errorf("no NATS server of the cluster replies: %w", err)
		}
		var reply struct {
			Server struct {
				Name string `json:"name"`
			} `json:"server"`
			Data *struct {
				Disabled bool `json:"disabled"`
				Config   struct {
					SyncAlways bool `json:"sync_always"`
				} `json:"config"`
			} `json:"data"`
		}
		if err := json.Unmarshal(m.Data, &reply); err != nil || reply.Data == nil {
			return nil, fmt.Errorf("the reply of a NATS server cannot be parsed: %.200q", m.Data)
		}
		if !reply.Data.Config.SyncAlways && !reply.Data.Disabled {
			unsynced = append(unsynced, reply.Server.Name)
		}
	}
}

// warnOfUnsyncedServers logs a warning when servers of the NATS cluster acknowledge messages before
// they are synced to disk.
func (c *Connection) warnOfUnsyncedServers(ctx context.Context, opts ConnectOptions) {
	if opts.Log == nil {
		return
	}
	unsynced, err := unsyncedServers(ctx, c.warden, serversSubject)
	switch {
	case err != nil:
		opts.Log.Warn("cannot determine whether the NATS servers sync an event before they acknowledge it: "+
			"check that each has sync_interval: always", "error", err)
	case len(unsynced) > 0:
		opts.Log.Warn("NATS servers acknowledge events before they are on disk: a power failure that takes a majority of "+
			"them loses acknowledged events and data keys; set sync_interval: always in the jetstream block of each",
			"servers", strings.Join(unsynced, ", "))
	}
}

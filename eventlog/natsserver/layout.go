package natsserver

import (
	"anneal/eventlog/integrity"
	"bytes"
	"context"
	"crypto/rand"
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
)

var errUnknownLayout = errors.New("eventlog: acknowledged messages are not in the block files")

const layoutStream = "LAYOUT"

// checkLayout tries whether a message that the server has acknowledged is in
// the block file where diskSync looks for it: else syncing that file would
// promise nothing.
func (s *Server) checkLayout(ctx context.Context, opts Options) error {
	js := s.js
	_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: layoutStream, Description: "Exists during the start only", Subjects: []string{"control.layout"}, Storage: jetstream.FileStorage,
	})
	if err != nil {
		return fmt.Errorf("eventlog: looking how NATS keeps messages: %w", err)
	}
	message := []byte(rand.Text() + rand.Text())
	_, err = js.Publish(ctx, "control.layout", message)
	inBlocks := opts.inBlocks
	if inBlocks == nil {
		inBlocks = inBlockFiles
	}
	known := err == nil && inBlocks(integrity.BlockDir(opts.Dir, "CONTROL", layoutStream), message)
	if deleted := js.DeleteStream(ctx, layoutStream); err != nil || deleted != nil {
		return fmt.Errorf("eventlog: looking how NATS keeps messages: %w", errors.Join(err, deleted))
	}
	if !known {
		return errUnknownLayout
	}
	return nil
}

// inBlockFiles tells whether a block file of a folder holds a message.
func inBlockFiles(dir string, message []byte) bool {
	paths, _ := filepath.Glob(filepath.Join(dir, "*.blk"))
	return slices.ContainsFunc(paths, func(path string) bool {
		content, err := os.ReadFile(path)
		return err == nil && bytes.Contains(content, message)
	})
}

// serversSubject is where the servers of a cluster are asked, in the system
// account, how their JetStream is configured.
const serversSubject = "$SYS.REQ.SERVER.PING.JSZ"

// silence is how long no server answers after the last one did.
const silence = 500 * time.Millisecond

// lazyServers names the servers that acknowledge a message before it is on
// disk. None answering is an error.
func lazyServers(ctx context.Context, nc *nats.Conn, subject string) (lazy []string, err error) {
	inbox := nc.NewInbox()
	sub, err := nc.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = sub.Unsubscribe() }()
	if err := nc.PublishRequest(subject, inbox, []byte("{}")); err != nil {
		return nil, err
	}
	for answers := 0; ; answers++ {
		once, cancel := context.WithTimeout(ctx, silence)
		m, err := sub.NextMsgWithContext(once)
		cancel()
		if err != nil && answers > 0 && ctx.Err() == nil {
			slices.Sort(lazy)
			return lazy, nil
		}
		if err != nil {
			return nil, fmt.Errorf("no server answers: %w", err)
		}
		var answer struct {
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
		if err := json.Unmarshal(m.Data, &answer); err != nil || answer.Data == nil {
			return nil, fmt.Errorf("the answer of a server cannot be read: %.200q", m.Data)
		}
		if !answer.Data.Config.SyncAlways && !answer.Data.Disabled {
			lazy = append(lazy, answer.Server.Name)
		}
	}
}

// warnOfLazyServers says at the start what a cluster does not promise.
func (c *Connection) warnOfLazyServers(ctx context.Context, opts ConnectOptions) {
	if opts.Log == nil {
		return
	}
	lazy, err := lazyServers(ctx, c.warden, serversSubject)
	switch {
	case err != nil:
		opts.Log.Warn("it is not known whether the NATS servers sync an event before they acknowledge it: "+
			"see that each has sync_interval: always", "error", err)
	case len(lazy) > 0:
		opts.Log.Warn("NATS servers acknowledge events before they are on disk: a power failure that takes a majority of them "+
			"loses acknowledged events and data keys; set sync_interval: always in the jetstream block of each",
			"servers", strings.Join(lazy, ", "))
	}
}

package node

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"

	"anneal/disk"
	"anneal/domain"
	"anneal/eventlog/natsconn"
	"anneal/eventlog/natsserver"
	"anneal/internal/datadir"
	"anneal/internal/usage"
	"anneal/workers/agent"
)

// JoinOptions configure the agent of a node that joins the server of another machine.
type JoinOptions struct {
	URL   string // NATS URL of the server
	Token string // join token; not needed after the node has enrolled
	Dir   string // directory for the node's key and downloads; "" stands for one in the user's cache directory
	Flags Flags
	TLS   *tls.Config   // TLS settings of HTTP downloads and uploads
	NATS  []nats.Option // additional options of the connection to NATS, such as TLS

	Stdout io.Writer
	Log    *slog.Logger
}

// Join enrolls the node if necessary, and runs its agent until ctx is done.
func Join(ctx context.Context, o JoinOptions) error {
	dir, release, err := o.lockDir()
	if err != nil {
		return err
	}
	defer release()
	if o.Flags.ID == "" {
		if o.Flags.ID, err = storedNodeID(dir); err != nil {
			return err
		}
	}
	keyPath := dir.Path(agent.KeyFile)
	if _, err := os.Stat(keyPath); err != nil && o.Token == "" {
		return usage.Errorf("this node has not enrolled yet (%s does not exist): give --token-file with a token "+
			"from `anneal node token` on the server's machine", keyPath)
	}
	key, err := agent.OpenKey(keyPath)
	if err != nil {
		return err
	}
	login := append(natsserver.AgentOptions(o.Flags.ID, o.Token, key), o.NATS...)
	if err := checkLogin(ctx, o.URL, login, o.Flags.ID, o.Log); err != nil {
		return err
	}
	fmt.Fprintf(o.Stdout, "node %s joined %s\n", o.Flags.ID, o.URL)
	return RunAgent(ctx, agent.Options{Token: o.Token, Key: key, URL: o.URL, NATS: o.NATS, TLS: o.TLS,
		Dir: dir.Path("work"), Log: o.Log},
		o.Flags, o.Flags.Sandbox(ctx, o.Log))
}

// maxCacheDirs is the maximum number of agents without --data that a user can run on one machine.
const maxCacheDirs = 64

// lockDir locks the node's directory, and returns the directory and the function that unlocks it.
// If Dir is "", it finds a directory in the user's cache directory that no other agent uses. Its
// name depends on the server and on the node's ID, if that is given. So an agent that restarts
// finds its ID, its key and its downloads again. lockDir also finds a directory that an older
// version named after the join token.
func (o JoinOptions) lockDir() (datadir.Dir, func(), error) {
	if o.Dir != "" {
		release, err := disk.LockDir(o.Dir)
		return datadir.Dir(o.Dir), release, err
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("find a directory for downloads: %w; give one with --data DIR", err)
	}
	base := cacheDir(cache, o.URL)
	if legacy := cacheDir(cache, o.Token); o.Token != "" {
		if found, _ := filepath.Glob(legacy + "-*"); len(found) > 0 {
			base = legacy
		}
	}
	if o.Flags.ID != "" {
		dir := base + "-" + o.Flags.ID
		release, err := disk.LockDir(dir)
		return datadir.Dir(dir), release, err
	}
	for n := 1; n <= maxCacheDirs; n++ {
		dir := fmt.Sprintf("%s-%d", base, n)
		release, lockErr := disk.LockDir(dir)
		if err = lockErr; err == nil {
			return datadir.Dir(dir), release, nil
		}
	}
	return "", nil, err
}

// cacheDir returns the prefix of the names of agents' directories in cache, the user's cache
// directory. server is the address of the server or, for directories of older versions, a join
// token.
func cacheDir(cache, server string) string {
	sum := sha256.Sum256([]byte(server))
	return filepath.Join(cache, "anneal", fmt.Sprintf("worker-%x", sum[:6]))
}

const (
	loginTimeout = 10 * time.Second
	loginRetry   = 500 * time.Millisecond
	loginWarning = 3 * time.Second // time between two warnings about a server that does not respond
)

// checkLogin waits until the server accepts the node, and returns an error if the server rejects
// it. After this first login, the agent reconnects without a time limit.
func checkLogin(ctx context.Context, url string, options []nats.Option, node string, logger *slog.Logger) error {
	if scheme, _, found := strings.Cut(url, "://"); found && scheme != "nats" && scheme != "tls" {
		return usage.Errorf("--join %s must be the server's NATS address, such as nats://HOST:4222 or "+
			"tls://HOST:4222: use natsUrl of the server's context file", url)
	}
	deadline, nextWarning := time.Now().Add(loginTimeout), time.Now()
	for {
		conn, err := natsconn.Connect(url, append(options, nats.RetryOnFailedConnect(false), nats.NoReconnect())...)
		switch {
		case err == nil:
			conn.Close()
			return nil
		case errors.Is(err, nats.ErrAuthorization):
			return fmt.Errorf("the server %s rejected node %s: the join token has expired or is for another node, "+
				"another agent has enrolled with this name, "+
				"or the node was revoked; check `anneal node list` on the server's machine, and create a token there with "+
				"`anneal node token`", url, node)
		case errors.Is(err, nats.ErrNkeysNotSupported):
			return fmt.Errorf("%s does not offer NKey authentication: configure its servers with the accounts in this "+
				"release's compose/nats.conf", url)
		case time.Now().After(deadline):
			return fmt.Errorf("connect to %s: %w; check that the server is running, that the address is reachable, "+
				"and that --nats-ca matches its certificate", url, err)
		}
		if now := time.Now(); !now.Before(nextWarning) {
			logger.Warn("cannot reach the server; retrying", "address", url, "for",
				time.Until(deadline).Round(time.Second),
				"error", err)
			nextWarning = now.Add(loginWarning)
		}
		select {
		case <-time.After(loginRetry):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

var notInID = regexp.MustCompile(`[^a-z0-9]+`)

// storedNodeID returns the node ID in a directory. At the first call it generates an ID from the
// host name, and stores it.
func storedNodeID(dir datadir.Dir) (string, error) {
	path := dir.Path("node.id")
	if text, err := os.ReadFile(path); err == nil && domain.ValidID(strings.TrimSpace(string(text))) {
		return strings.TrimSpace(string(text)), nil
	}
	host, _ := os.Hostname()
	host = strings.Trim(notInID.ReplaceAllString(strings.ToLower(host), "-"), "-")
	id := "node-" + strings.Trim(host[:min(len(host), 40)], "-") + "-" + uuid.NewString()[:8]
	return id, datadir.WritePrivate(path, []byte(id+"\n"))
}

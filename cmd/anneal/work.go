package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/engines/sandbox"
	"anneal/engines/sound"
	"anneal/eventlog"
	"anneal/workers/agent"
)

// nodeFlags say what a node offers; serve (for its local worker) and work take
// them.
type nodeFlags struct {
	id, pool     string
	accelerators []string
	engine       engineFlags
	plain        bool // evaluators run without a sandbox
}

func (n *nodeFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&n.id, "node-id", "", "the node's ID (default: a random one that is kept)")
	f.StringVar(&n.pool, "pool", "", "training or inference (default: both)")
	f.BoolVar(&n.plain, "evaluators-without-sandbox", false, "run evaluators' code as plain processes of this user, who may do whatever this user may: for one user's own code alone")
	f.StringArrayVar(&n.accelerators, "accelerators", nil, "say what devices the node has instead of looking, or imitate them: `TYPE=N`, such as VENDOR_A_H100_80GB=8; may be repeated")
	n.engine.add(c)
}

func (n *nodeFlags) check() error {
	var v domain.Violations
	v.Require(n.id == "" || domain.ValidID(n.id), "--node-id", domain.IDRule)
	v.Require(n.pool == "" || n.pool == domain.PoolTraining || n.pool == domain.PoolInference, "--pool", "must be training or inference")
	_, err := n.devices()
	v.Require(err == nil, "--accelerators", "must be TYPE=N, such as VENDOR_A_H100_80GB=8")
	n.engine.check(&v)
	if err := v.Err(); err != nil {
		return usageError{err}
	}
	return nil
}

func (n *nodeFlags) devices() (map[string]int, error) {
	devices := map[string]int{}
	for _, text := range n.accelerators {
		kind, number, _ := strings.Cut(text, "=")
		count, err := strconv.Atoi(number)
		if err != nil || count < 1 || count > 1024 || kind == "" {
			return nil, fmt.Errorf("%q", text)
		}
		devices[kind] += count
	}
	return devices, nil
}

// sandbox is where evaluators run. What it lacks is said once, at the start.
func (n *nodeFlags) sandbox(ctx context.Context, logger *slog.Logger) *sandbox.Sandbox {
	made := sandbox.New(sandbox.Options{Plain: n.plain})
	if n.plain {
		logger.Warn("evaluators run WITHOUT a sandbox: their code may read, change and send whatever this user may; this is for one user's own code alone")
	}
	if err := made.Check(ctx); err != nil {
		logger.Warn("evaluators are not built or run here", "error", err)
	}
	return made
}

func workCommand() *cobra.Command {
	var join, tokenFile, dir, natsCA, natsCert, natsKey string
	var node nodeFlags
	c := &cobra.Command{Use: "work --join URL [--token-file FILE]", Short: "Train and serve on this machine for a server elsewhere", Args: arguments(0, 0),
		Example: "  anneal work --join nats://SERVER:4222 --token-file node.token",
		Long: `At its first contact the agent makes a key of its own, node.nkey in its folder, and enrols with the
token. From then on the key alone lets it in: the token may expire, and no other agent can take the
node's name. If the key is lost, or was stolen, revoke the node and join with a new token.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := node.check(); err != nil {
				return err
			}
			if join == "" {
				return usageError{errors.New("--join is required: the server's NATS address, natsUrl in its context file")}
			}
			token, bound := "", ""
			if tokenFile != "" {
				var err error
				if token, bound, err = readToken(tokenFile); err != nil {
					return err
				}
			}
			node.id = cmp.Or(node.id, bound)
			pair, err := openKeyPair("--nats-cert", natsCert, "--nats-key", natsKey)
			if err != nil {
				return err
			}
			ca, _ := c.Flags().GetString("ca")
			config, err := clientTLS(pair, natsCA, ca)
			if err != nil {
				return err
			}
			var secure []nats.Option
			if pair != nil || natsCA != "" || strings.HasPrefix(join, "tls://") {
				secure = append(secure, nats.Secure(config))
			}
			return work(c.Context(), join, token, dir, node, config, secure)
		}}
	node.add(c)
	c.Flags().StringVar(&join, "join", "", "the server's NATS address")
	c.Flags().StringVar(&natsCA, "nats-ca", "", "authorities to trust beside the system's, in PEM, for NATS and for files; NATS must then have TLS")
	c.Flags().StringVar(&natsCert, "nats-cert", "", "certificate to show, in PEM, where --tls-client-ca asks for one; read again when it changes")
	c.Flags().StringVar(&natsKey, "nats-key", "", "its private key")
	c.Flags().StringVar(&tokenFile, "token-file", "", "file with the token with which this node enrols at its first contact")
	c.Flags().StringVar(&dir, "data", "", "folder for the node's key and downloads (default: one below the user's cache folder, by node)")
	return c
}

func work(ctx context.Context, join, token, dir string, flags nodeFlags, config *tls.Config, secure []nats.Option) error {
	var release func()
	var err error
	if dir == "" {
		dir, release, err = freeFolder(join, token, flags.id)
	} else {
		release, err = eventlog.LockDir(dir)
	}
	if err != nil {
		return err
	}
	defer release()
	if flags.id == "" {
		if flags.id, err = keptNodeID(folder(dir)); err != nil {
			return err
		}
	}
	keyPath := filepath.Join(dir, agent.KeyFile)
	if _, err := os.Stat(keyPath); err != nil && token == "" {
		return usageError{fmt.Errorf("this node has not enrolled yet (no %s): give --token-file with a token that `anneal node token` makes on the server's machine", keyPath)}
	}
	key, err := agent.OpenKey(keyPath)
	if err != nil {
		return err
	}
	logger := newLogger()
	if err := tryJoin(ctx, join, append(eventlog.AgentOptions(flags.id, token, key), secure...), flags.id, logger); err != nil {
		return err
	}
	fmt.Fprintf(stdout, "node %s works for %s\n", flags.id, join)
	return runAgent(ctx, agent.Options{Token: token, Key: key, URL: join, NATS: secure, TLS: config, Dir: filepath.Join(dir, "work"), Log: logger}, flags, flags.sandbox(ctx, logger))
}

// mostWorkers is how many agents one user may run on a machine without saying
// where they keep their files.
const mostWorkers = 64

// freeFolder locks a folder below the user's cache that no other agent uses. It
// belongs to one server and, when the node has an ID, to that node; so an agent
// that starts again finds its ID, its key and its downloads. Older versions
// named it by the token: what they left is used again.
func freeFolder(join, token, node string) (dir string, release func(), err error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", nil, fmt.Errorf("there is no folder for downloads (%w): give one with --data DIR", err)
	}
	base := workerFolder(cache, join)
	if earlier := workerFolder(cache, token); token != "" {
		if left, _ := filepath.Glob(earlier + "-*"); len(left) > 0 {
			base = earlier
		}
	}
	if node != "" {
		dir = base + "-" + node
		release, err = eventlog.LockDir(dir)
		return dir, release, err
	}
	for n := 1; n <= mostWorkers; n++ {
		dir = fmt.Sprintf("%s-%d", base, n)
		if release, err = eventlog.LockDir(dir); err == nil {
			return dir, release, nil
		}
	}
	return "", nil, err
}

func workerFolder(cache, whose string) string {
	sum := sha256.Sum256([]byte(whose))
	return filepath.Join(cache, "anneal", fmt.Sprintf("worker-%x", sum[:6]))
}

const (
	joinWithin = 10 * time.Second
	joinRemind = 3 * time.Second // between two words on a server that does not answer
)

// tryJoin checks at the start whether the server accepts the node. Later the
// agent reconnects, however long the server is away.
func tryJoin(ctx context.Context, join string, options []nats.Option, node string, logger *slog.Logger) error {
	if scheme, _, found := strings.Cut(join, "://"); found && scheme != "nats" && scheme != "tls" {
		return usageError{fmt.Errorf("--join %s must be the server's NATS address, like nats://HOST:4222 or tls://HOST:4222: natsUrl in its context file", join)}
	}
	deadline, remind := time.Now().Add(joinWithin), time.Now()
	for {
		conn, err := nats.Connect(join, append(options, nats.RetryOnFailedConnect(false), nats.NoReconnect())...)
		switch {
		case err == nil:
			conn.Close()
			return nil
		case errors.Is(err, nats.ErrAuthorization):
			return fmt.Errorf("%s rejected node %s: the join token has expired or is for another node, another agent has enrolled with this name, "+
				"or the node was revoked; check `anneal node list` on the server's machine, and create a token there with `anneal node token`", join, node)
		case errors.Is(err, nats.ErrNkeysNotSupported):
			return fmt.Errorf("%s does not offer NKey authentication: configure its servers with the accounts in this release's compose/nats.conf", join)
		case time.Now().After(deadline):
			return fmt.Errorf("cannot connect to %s: %w; check that the server is running, that the address is reachable, and that --nats-ca fits its certificate", join, err)
		}
		if now := time.Now(); !now.Before(remind) {
			logger.Warn("cannot reach the server, and tries again", "address", join, "for", time.Until(deadline).Round(time.Second), "error", err)
			remind = now.Add(joinRemind)
		}
		if err := pause(ctx, 500*time.Millisecond); err != nil {
			return err
		}
	}
}

// runAgent works until ctx is done; o says where.
func runAgent(ctx context.Context, o agent.Options, flags nodeFlags, evaluators *sandbox.Sandbox) error {
	devices, err := flags.devices()
	if err != nil {
		return err
	}
	if o.Dir, err = filepath.Abs(o.Dir); err != nil { // for the programs that engines start
		return err
	}
	runner := flags.engine.runner(ctx, o.Log)
	if o.Engine, err = flags.engine.build(ctx, o.Dir, runner, o.Log); err != nil {
		return err
	}
	o.Node, o.Pool, o.Version, o.Sound = flags.id, flags.pool, version, sound.Opener{Runner: runner}.Open
	if err := evaluators.Check(ctx); err != nil {
		o.Engine.Why["score"] = err.Error()
	} else {
		o.Engine.Scorer = evaluators
		delete(o.Engine.Why, "score")
	}
	if len(devices) > 0 {
		o.Capacity = devices
	}
	one, err := agent.New(o)
	if err != nil {
		return err
	}
	boundGarbage(one.Memory(), os.Getenv("GOMEMLIMIT"))
	return one.Run(ctx)
}

// boundGarbage has garbage collected before a process that holds models nears
// the machine's memory: by itself it would wait until there is as much garbage
// as there are weights. An operator's own limit stays.
func boundGarbage(memory int64, limit string) {
	if limit == "" {
		debug.SetMemoryLimit(memory / 10 * 9)
	}
}

var notInID = regexp.MustCompile(`[^a-z0-9]+`)

// keptNodeID is the ID under which this folder's agent is known: made from the
// machine's name once, and kept.
func keptNodeID(dir folder) (string, error) {
	path := dir.path("node.id")
	if text, err := os.ReadFile(path); err == nil && domain.ValidID(strings.TrimSpace(string(text))) {
		return strings.TrimSpace(string(text)), nil
	}
	host, _ := os.Hostname()
	host = strings.Trim(notInID.ReplaceAllString(strings.ToLower(host), "-"), "-")
	made := "node-" + strings.Trim(host[:min(len(host), 40)], "-") + "-" + uuid.NewString()[:8]
	return made, writePrivate(path, []byte(made+"\n"))
}

func newLogger() *slog.Logger {
	level := slog.LevelInfo
	if err := level.UnmarshalText([]byte(os.Getenv("ANNEAL_LOG"))); err != nil {
		level = slog.LevelInfo
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
}

// quietLogger shows what went wrong and nothing else.
func quietLogger() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}

// warnings is a logger for parts that say too much when all is well.
func warnings(logger *slog.Logger) *slog.Logger { return slog.New(atLeastWarn{logger.Handler()}) }

type atLeastWarn struct{ slog.Handler }

func (h atLeastWarn) Enabled(ctx context.Context, level slog.Level) bool {
	return level >= slog.LevelWarn && h.Handler.Enabled(ctx, level)
}
func (h atLeastWarn) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeastWarn{h.Handler.WithAttrs(attrs)}
}
func (h atLeastWarn) WithGroup(name string) slog.Handler {
	return atLeastWarn{h.Handler.WithGroup(name)}
}

package cli

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"anneal/eventlog/transparency"
	"anneal/internal/server"
	"anneal/internal/usage"
)

func logKey() *cobra.Command {
	c := &cobra.Command{Use: "key", Short: "Print the public key that verifies the log's checkpoints",
		Args: arguments(0, 0),
		Long: `Prints the key that 'anneal log check' and witnesses need. Publish it where it cannot be replaced
together with the log.`,
		RunE: func(c *cobra.Command, _ []string) error {
			key, err := server.LogKey(operatorDir(c))
			if err != nil {
				return err
			}
			note(c, "%s", key)
			return jsonOnly(c, map[string]string{"key": key})
		}}
	dataFlag(c.Flags())
	return c
}

func logCheckpoint() *cobra.Command {
	c := &cobra.Command{Use: "checkpoint", Short: "Print the newest signed checkpoint of the log", Args: arguments(0, 0),
		Example: "  anneal log checkpoint > checkpoint-of-today",
		Long: `Prints a signature over all events so far. Keep it: 'anneal log prove --since FILE' later
proves that none of them was changed or removed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			client, err := newOperator(c)
			if err != nil {
				return err
			}
			signed, err := client.logFile(c.Context(), "checkpoint")
			if err != nil {
				return err
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), map[string]string{"checkpoint": string(signed)})
			}
			_, err = c.OutOrStdout().Write(signed)
			return err
		}}
	dataFlag(c.Flags())
	return c
}

// logFile requests a file of the log's Merkle tree, as C2SP's tlog-tiles defines the paths.
func (c *client) logFile(ctx context.Context, path string) ([]byte, error) {
	res, err := c.request(ctx, http.MethodGet, "/log/"+path, nil, "", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(res.Body)
}

// A prover is one run of `anneal log prove`.
type prover struct {
	*client
	account       string // account of the context, to which short names of resources belong
	operator      bool   // the client has the operator's API key
	all           bool
	since         string
	from, to      uint64
	file, subject string // subject is the argument: a resource, the ID of an event, or a position
}

func logProve() *cobra.Command {
	var p prover
	c := &cobra.Command{Use: "prove [RESOURCE|EVENT|POSITION]", Short: "Prove who created a resource, that an " +
		"event is in the log, or that no event of the log was changed",
		Args: arguments(0, 1),
		Example: "  anneal log prove 41 --file event.proof\n  anneal log prove deployments/codes --since " +
			"checkpoint-of-last-week --file deployment.proof\n  anneal log prove --all --file account.proof\n  " +
			"anneal log prove --from 1000 --to 2000",
		Long: `Writes a bundle that 'anneal log check' verifies offline: the event, the salts of the hashes
in its entry in the log's Merkle tree, the proof that the tree contains the entry, and a signed checkpoint.
RESOURCE is COLLECTION/ID or a full name, and stands for the newest event that created it, even if the
resource was deleted since. EVENT is the ID of an event. With --since the bundle also proves that the log
still has all events of an earlier checkpoint.

On the server's machine the command proves events of all accounts, elsewhere those of the context's account.
--from needs the operator's key, or a server with --public-log.`,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 1 {
				p.subject = args[0]
			}
			if modes := count(len(args) == 1, p.all, p.from > 0); modes != 1 {
				return usage.Errorf("exactly one of RESOURCE, EVENT, POSITION, --all and --from is required: what to " +
					"prove")
			}
			return p.run(c)
		}}
	dataFlag(c.Flags())
	f := c.Flags()
	f.StringVar(&p.file, "file", "", "write the bundle to a new `FILE` (default: standard output)")
	f.BoolVar(&p.all, "all", false, "prove all events of the context's account, one bundle in each line")
	f.StringVar(&p.since, "since", "",
		"also prove that the log still has all events of a `CHECKPOINT`: a file, or a number of events")
	f.Uint64Var(&p.from, "from", 0, "prove that the log still has this number of its first events, unchanged")
	f.Uint64Var(&p.to, "to", 0, "with --from, number of events of the larger log that begins with those events "+
		"(default: the size of the newest checkpoint)")
	return c
}

func count(conditions ...bool) (n int) {
	for _, holds := range conditions {
		if holds {
			n++
		}
	}
	return n
}

func (p *prover) run(c *cobra.Command) (err error) {
	p.operator = checkOperator(operatorDir(c)) == nil && !p.all
	if p.client, err = newClient(c); err == nil {
		p.account = p.Account
	}
	if p.operator {
		p.client, err = newOperator(c)
	}
	if err != nil {
		return err
	}
	since, err := sizeOf(p.since)
	if err != nil {
		return err
	}
	if p.file == "" {
		data, err := p.bundles(c.Context(), since)
		if err == nil {
			_, err = c.OutOrStdout().Write(data)
		}
		return err
	}
	if err := storeSecret(c, p.file, func() ([]byte, error) { return p.bundles(c.Context(), since) }); err != nil {
		return err
	}
	note(c, "wrote %s; verify it anywhere with: anneal log check %s --key KEY, where KEY is what 'anneal log key' prints",
		p.file, p.file)
	return jsonOnly(c, map[string]string{"file": p.file})
}

// sizeOf returns the number of events of a checkpoint, which is given as a file or as that number;
// 0 if checkpoint is "".
func sizeOf(checkpoint string) (uint64, error) {
	if n, err := strconv.ParseUint(checkpoint, 10, 63); err == nil || checkpoint == "" {
		return n, nil
	}
	signed, err := os.ReadFile(checkpoint)
	if err != nil {
		return 0, fmt.Errorf("--since: %w", err)
	}
	c, err := transparency.ParseCheckpoint(string(signed))
	if err != nil {
		return 0, fmt.Errorf("--since %s: %w", checkpoint, err)
	}
	return c.Size, nil
}

func (p *prover) bundles(ctx context.Context, since uint64) ([]byte, error) {
	if p.from > 0 {
		b, err := transparency.ProveGrowth(func(path string) ([]byte, error) { return p.logFile(ctx, path) }, p.from, p.to)
		if err != nil {
			return nil, err
		}
		return b.Marshal()
	}
	positions, err := p.positions(ctx)
	if err != nil {
		return nil, err
	}
	var all []byte
	for n, position := range positions {
		b, err := p.bundle(ctx, position, since)
		if err != nil {
			return nil, err
		}
		if n > 0 && len(b.Growth) == 1 && b.Growth[0].From == b.Growth[0].To {
			b.Growth = nil // the checkpoint is that of the bundle before
		}
		data, err := b.Marshal()
		if err != nil {
			return nil, err
		}
		all = append(all, data...)
		// The log can grow between two requests: each bundle proves that its checkpoint continues that of
		// the bundle before, so that the newest one is proven to continue that of --since.
		if since, err = b.CheckpointSize(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// positions returns the positions of the events that are proved.
func (p *prover) positions(ctx context.Context) (positions []string, err error) {
	if _, err := strconv.ParseUint(p.subject, 10, 63); err == nil {
		return []string{p.subject}, nil
	}
	if strings.Contains(p.subject, "/") {
		position, err := p.creation(ctx)
		return []string{position}, err
	}
	path, query := p.eventsOf(), url.Values{}
	if !p.all {
		query.Set("filter", "id = "+strconv.Quote(p.subject))
	}
	items, err := p.list(ctx, path, "events", query)
	for _, item := range items {
		positions = append(positions, cell(item, "position"))
	}
	if err == nil && len(positions) == 0 {
		err = fmt.Errorf("event %q not found: list the events with 'anneal events'", p.subject)
	}
	return positions, err
}

// creation returns the position of the newest event that created the resource.
func (p *prover) creation(ctx context.Context) (position string, err error) {
	if p.account == "" && !strings.HasPrefix(p.subject, "accounts/") {
		return "", usage.Errorf("%q needs an account: give the full name, accounts/ACCOUNT/%s, or log in with "+
			"'anneal login'", p.subject, p.subject)
	}
	in := *p.client
	in.Account = p.account
	name, err := in.resourceName(p.subject)
	if err != nil {
		return "", err
	}
	events, err := p.resourceEvents(ctx, name)
	if err != nil {
		return "", err
	}
	changes, err := changesOf(name, events)
	if err != nil {
		return "", err
	}
	for _, change := range slices.Backward(changes) {
		if change["field"] == wholeResource && change["new"] != nil {
			return text(change, "position"), nil
		}
	}
	return "", fmt.Errorf("no event created %s: list events with 'anneal events'", name)
}

func (p *prover) eventsOf() string {
	if p.operator {
		return "/v1/events"
	}
	return p.path("events")
}

func (p *prover) bundle(ctx context.Context, position string, since uint64) (b transparency.Bundle, err error) {
	query := url.Values{}
	if since > 0 {
		query.Set("since", strconv.FormatUint(since, 10))
	}
	res, err := p.request(ctx, http.MethodGet, p.eventsOf()+"/"+position+":prove", query, "", nil)
	if err != nil {
		return b, err
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		return b, errTruncated(err)
	}
	if b, err = transparency.ParseBundle(data); err != nil {
		return b, fmt.Errorf("the response of %s is not valid: %w", p.Address, err)
	}
	return b, nil
}

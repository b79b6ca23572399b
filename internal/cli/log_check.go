package cli

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"
	signednote "golang.org/x/mod/sumdb/note"

	"anneal/domain"
	"anneal/eventlog/transparency"
	"anneal/internal/usage"
)

// maxBundleLine is the maximum length of a line with a bundle. The line contains an event of at
// most 1 MiB, which is longer in JSON.
const maxBundleLine = 16 << 20

// A logCheck is one run of `anneal log check`.
type logCheck struct {
	key       string
	witnesses []string
	since     string
	log       signednote.Verifier
	keys      []signednote.Verifier // public keys of the witnesses that must have cosigned
}

// A checkReport is the result of `anneal log check`.
type checkReport struct {
	Events     []checkedEvent `json:"events"`
	Checkpoint checkedHead    `json:"checkpoint"`
	Since      *checkedHead   `json:"onlyGrewSince,omitempty"`
	Account    string         `json:"account,omitempty"` // account to which all Events belong
	// Unlinked are checkpoints of the file of which it does not prove that Checkpoint has all of
	// their events.
	Unlinked []checkedHead `json:"unlinked,omitempty"`

	heads      map[uint64]checkedHead // checkpoints of the file, by size
	beginnings transparency.Beginnings
}

type checkedEvent struct {
	Position   uint64            `json:"position,string"`
	Resource   string            `json:"resource"`
	Attributes map[string]string `json:"attributes"`
	Sequence   uint64            `json:"accountSequence,string"`
	Payload    *string           `json:"payload"`
}

type checkedHead struct {
	Origin    string `json:"origin"`
	Size      uint64 `json:"size,string"`
	Root      string `json:"root"`
	Witnesses int    `json:"witnesses"`
}

func logCheckFile() *cobra.Command {
	var k logCheck
	c := &cobra.Command{Use: "check FILE", Short: "Verify a bundle of 'anneal log prove' offline", Args: arguments(1, 1),
		Example: "  anneal log check deployment.proof --key ANNEAL/…+…+…\n" +
			"  anneal log check deployment.proof --key KEY --since checkpoint-of-last-week",
		Long: `Needs no server, only the file and the log's public key. The check fails unless the log's
signed checkpoint covers every byte of the event in the bundle. In a file with several bundles, as
'anneal log prove --all' writes it, it also fails if an event of the account, from the first one on, is
missing, swapped or repeated, or if the signed checkpoints show two different histories of the log. Events
after the last one in the file are not missed: compare it with your own last change. With --since it fails
unless all events of the earlier checkpoint are still in the log of the newest checkpoint, unchanged.`,
		RunE: func(c *cobra.Command, args []string) error {
			report, err := k.run(args[0])
			if err != nil {
				return notValid(args[0], err)
			}
			if inJSON, _ := wantsJSON(c); inJSON {
				return printJSON(c.OutOrStdout(), report)
			}
			report.print(c.OutOrStdout())
			return nil
		}}
	f := c.Flags()
	f.StringVar(&k.key, "key", "", "public `KEY` of the log, as 'anneal log key' prints it")
	f.StringArrayVar(&k.witnesses, "witness", nil,
		"public `KEY` of a witness that must have cosigned the checkpoint; repeat the flag for more")
	f.StringVar(&k.since, "since", "", "`FILE` with an earlier checkpoint, whose events must still be in the log, "+
		"unchanged")
	return c
}

// notValid returns the error for a bundle that is not valid. It returns usage errors and errors of
// unreadable files unchanged, because they are not about the bundle.
func notValid(path string, err error) error {
	var wrong usage.Error
	var unread *fs.PathError
	if errors.As(err, &wrong) || errors.As(err, &unread) {
		return err
	}
	return fmt.Errorf("%s is NOT valid: %w", path, err)
}

func (k *logCheck) run(path string) (report checkReport, err error) {
	if k.key == "" {
		return report, usage.Errorf("--key is required: the public key of the log, which 'anneal log key' prints")
	}
	if k.log, err = transparency.ParseKey(k.key); err != nil {
		return report, usage.Errorf("--key: %v", err)
	}
	for _, text := range k.witnesses {
		key, err := transparency.ParseWitnessKey(text)
		if err != nil {
			return report, usage.Errorf("--witness: %v", err)
		}
		k.keys = append(k.keys, key)
	}
	file, err := os.Open(path)
	if err != nil {
		return report, err
	}
	defer file.Close()
	if err := k.read(file, &report); err != nil {
		return report, err
	}
	return report, k.checkSince(&report)
}

func (k *logCheck) read(file io.Reader, report *checkReport) error {
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, maxBundleLine)
	var history transparency.History
	n := 0
	for ; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			return fmt.Errorf("line %d is empty: each line must be a bundle", n+1)
		}
		b, err := transparency.ParseBundle(lines.Bytes())
		if err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
		v, err := b.Verify(k.log, k.keys...)
		if err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
		if v.Cosigned < len(k.keys) {
			return fmt.Errorf("line %d: the checkpoint is cosigned by only %d of the %d witnesses of --witness",
				n+1, v.Cosigned, len(k.keys))
		}
		if err := report.add(v, &history, n); err != nil {
			return fmt.Errorf("line %d: %w", n+1, err)
		}
	}
	if err := lines.Err(); err != nil {
		return err
	}
	if n == 0 {
		return fmt.Errorf("the file is empty: create a bundle with 'anneal log prove'")
	}
	if all := report.Events; len(all) > 1 && all[0].Sequence > 1 {
		return fmt.Errorf("the event at position %d is event %d of the account, but a file with several bundles must "+
			"begin with event 1: %d events are missing", all[0].Position, all[0].Sequence, all[0].Sequence-1)
	}
	return nil
}

// add adds the verified bundle of line n. If the file has several bundles, they must have
// consecutive events of one account.
func (r *checkReport) add(v transparency.Verified, history *transparency.History, n int) error {
	if v.Event != nil || n > 0 {
		if err := history.Add(v); err != nil {
			return err
		}
	}
	if v.Event != nil {
		m := v.Event.Message()
		e := checkedEvent{Position: m.Position(), Resource: string(domain.NameOf(m.Subject())),
			Attributes: map[string]string{}, Sequence: v.Event.AccountSequence, Payload: v.Event.Payload}
		for _, a := range m.Attributes() {
			e.Attributes[a.Name] = a.Value
		}
		r.Events, r.Account = append(r.Events, e), domain.NameOf(m.Subject()).Account()
	}
	head := headOf(v.Checkpoint, v.Cosigned)
	if r.heads == nil {
		r.heads = map[uint64]checkedHead{}
	}
	r.heads[head.Size] = head
	if head.Size >= r.Checkpoint.Size {
		r.Checkpoint = head
	}
	return r.beginnings.Add(v)
}

// link compares the newest checkpoint of the file with the others. It sets Unlinked, and Since to
// the smallest size of which the file proves that the newest checkpoint has all events.
func (r *checkReport) link() (linked map[uint64]transparency.Hash) {
	linked = r.beginnings.Of(r.Checkpoint.Size)
	for _, size := range slices.Sorted(maps.Keys(r.heads)) {
		if _, ok := linked[size]; !ok {
			r.Unlinked = append(r.Unlinked, r.heads[size])
		}
	}
	if since := slices.Min(slices.Collect(maps.Keys(linked))); since < r.Checkpoint.Size {
		head := headOf(transparency.Checkpoint{Origin: r.Checkpoint.Origin, Size: since, Root: linked[since]}, 0)
		r.Since = &head
	}
	return linked
}

func headOf(c transparency.Checkpoint, cosigned int) checkedHead {
	return checkedHead{c.Origin, c.Size, c.Root.String(), cosigned}
}

// checkSince compares the file with the checkpoint of --since: all of its events must still be in
// the log of the newest checkpoint.
func (k *logCheck) checkSince(report *checkReport) error {
	linked := report.link()
	if k.since == "" { // without --since, only the bundles themselves state the earlier root
		return nil
	}
	signed, err := os.ReadFile(k.since)
	if err != nil {
		return err
	}
	old, cosigned, err := transparency.OpenCheckpoint(signed, k.log, k.keys...)
	if err != nil {
		return fmt.Errorf("%s: %w", k.since, err)
	}
	root, known := report.beginnings.Root(old.Size)
	_, reached := linked[old.Size]
	switch {
	case !known:
		return fmt.Errorf("the bundle does not prove that the log still has the %d events of %s: create it with "+
			"'anneal log prove --since %s'", old.Size,
			k.since, k.since)
	case root != old.Root:
		return fmt.Errorf("the log was REWRITTEN: its first %d events have root hash %s, but %s was signed with %s", old.Size,
			root, k.since, old.Root)
	case !reached:
		return fmt.Errorf("the file does not prove that the newest checkpoint in it, of %d events, still has the %d events "+
			"of %s; it proves that only of an earlier checkpoint: create it again with 'anneal log prove --since %s'",
			report.Checkpoint.Size, old.Size, k.since, k.since)
	}
	head := headOf(old, cosigned)
	report.Since = &head
	return nil
}

func (r checkReport) print(w io.Writer) {
	if len(r.Events) == 1 {
		e := r.Events[0]
		fmt.Fprintf(w, "VALID: position %d is event %d of accounts/%s\n", e.Position, e.Sequence, r.Account)
		for _, line := range [][2]string{{"type", "ce-type"}, {"actor", "ce-actor"}, {"time", "ce-time"}, {"id", "ce-id"},
			{"request", "ce-correlation"}, {"control plane", "ce-controlplane"},
			{"address", "ce-clientaddress"}} {
			if value := e.Attributes[line[1]]; value != "" {
				fmt.Fprintf(w, "  %-14s %s\n", line[0], value)
			}
		}
		fmt.Fprintf(w, "  %-14s %s\n", "resource", e.Resource)
		if e.Payload != nil {
			fmt.Fprintf(w, "  %-14s %s\n", "data", *e.Payload)
		} else {
			fmt.Fprintf(w, "  %-14s not disclosed; the log has only their hash\n", "data")
		}
	} else if n := len(r.Events); n > 1 {
		fmt.Fprintf(w, "VALID: events %d to %d of accounts/%s, at positions %d to %d; no event between them is "+
			"missing\n",
			r.Events[0].Sequence, r.Events[n-1].Sequence, r.Account, r.Events[0].Position, r.Events[n-1].Position)
	} else {
		fmt.Fprintln(w, "VALID: all events of the earlier checkpoint are still in the log; compare its root with a "+
			"checkpoint that you kept, or give that as --since")
	}
	fmt.Fprintf(w, "  %-14s %s, %d events, root %s, cosigned by %d of the given witnesses\n", "checkpoint",
		r.Checkpoint.Origin, r.Checkpoint.Size, r.Checkpoint.Root, r.Checkpoint.Witnesses)
	if r.Since != nil {
		fmt.Fprintf(w, "  %-14s a checkpoint of %d events, root %s: the log still has all of them, unchanged\n",
			"since",
			r.Since.Size, r.Since.Root)
	}
	if n := len(r.Unlinked); n > 0 {
		fmt.Fprintf(w, "  %-14s the file does not prove that the newest checkpoint has all events of %d earlier ones in it "+
			"(the first has %d events): to prove that, create it again with 'anneal log prove --all'\n", "NOT proven", n,
			r.Unlinked[0].Size)
	}
}

// Package installation stores the record of an installation: the data that its control planes must
// agree on. These are the fingerprints of their keys, their bucket, the version of the events in
// the log, and the list of control planes. A control plane that has other keys or another bucket,
// or that cannot read the events, is refused.
package installation

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/kv"
)

// A Record is the data that the control planes of an installation must agree on.
type Record struct {
	// Keys has the Fingerprint of each key that the control planes share, by the name of the key.
	Keys map[string]string `json:"keys"`
	// Bucket is the ID of the bucket with the files; "" until the first control plane has opened it.
	Bucket string `json:"bucket,omitempty"`
	// EventVersion is the highest version of events that may be in the log; see domain.EventVersion.
	EventVersion int `json:"eventVersion"`
	// Members has the running control planes by ID. A control plane that stops removes itself; one
	// that crashed is removed by another.
	Members map[string]Member `json:"members"`
	// Restore is the restore that fills the cluster, or that was interrupted; nil in an installation.
	Restore *Restore `json:"restore,omitempty"`
}

// A Member describes one running control plane.
type Member struct {
	Boot         string `json:"boot"`         // random ID of the process; a restart changes it
	Release      string `json:"release"`      // version of the anneal program
	EventVersion int    `json:"eventVersion"` // highest version of events that the control plane can read
}

// The record is one key of a JetStream key-value bucket without history.
const (
	stream   = "KV_INSTALLATION"
	recordID = "record"
)

func ensure(ctx context.Context, js jetstream.JetStream, replicas int) error {
	return eventlog.EnsureStream(ctx, js, jetstream.StreamConfig{
		Name:              stream,
		Description:       "Record of the installation: key fingerprints, bucket ID, event version and control planes",
		Subjects:          []string{"$KV.INSTALLATION.>"},
		Storage:           jetstream.FileStorage,
		Replicas:          max(1, replicas),
		MaxMsgsPerSubject: 1,
		Discard:           jetstream.DiscardNew,
	}, replicas)
}

// Fingerprint returns a digest of a key by which control planes compare keys. The digest does not
// reveal the key, because keys are 32 random bytes.
func Fingerprint(name string, key []byte) string {
	h := sha256.New()
	fmt.Fprintf(h, "anneal key fingerprint %q\n", name)
	h.Write(key)
	return hex.EncodeToString(h.Sum(nil)[:8])
}

// Read returns the record of the installation whose log is in the NATS cluster of nc. ok is false
// when there is no record. Read changes nothing in the cluster.
func Read(ctx context.Context, nc *nats.Conn) (record Record, ok bool, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return record, false, fmt.Errorf("eventlog: %w", err)
	}
	err = eventlog.Retry(ctx, func(ctx context.Context) error {
		there, err := js.Stream(ctx, stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("look up stream %s: %w", stream, err)
		}
		m, err := there.GetLastMsgForSubject(ctx, "$KV.INSTALLATION."+recordID)
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the record of the installation: %w", err)
		}
		ok = true
		return json.Unmarshal(m.Data, &record)
	})
	return record, ok, err
}

// HasLog reports whether the NATS cluster has a log with events.
func HasLog(ctx context.Context, nc *nats.Conn) (has bool, err error) {
	js, err := jetstream.New(nc)
	if err != nil {
		return false, fmt.Errorf("eventlog: %w", err)
	}
	err = eventlog.Retry(ctx, func(ctx context.Context) error {
		there, err := js.Stream(ctx, eventlog.Stream)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		if err == nil {
			has = there.CachedInfo().State.LastSeq > 0
		}
		return err
	})
	if err != nil {
		return false, fmt.Errorf("look up stream %s: %w", eventlog.Stream, err)
	}
	return has, nil
}

// update replaces the record with the result of change and returns the stored record. change gets a
// copy of the record that it may modify, or the zero Record when there is none; it returns nil to
// leave the record unchanged. update calls change again when another control plane has changed the
// record at the same time.
func update(ctx context.Context, bucket kv.Store, change func(Record) (*Record, error)) (Record, error) {
	for {
		var record Record
		content, revision, err := bucket.Get(ctx, recordID)
		if err == nil && revision > 0 {
			err = json.Unmarshal(content, &record)
		}
		if err != nil {
			return Record{}, fmt.Errorf("read the record of the installation: %w", err)
		}
		changed, err := change(record.clone())
		if err != nil || changed == nil {
			return record, err
		}
		if content, err = json.Marshal(changed); err != nil {
			return Record{}, err
		}
		if _, err = bucket.Put(ctx, recordID, content, revision); err == nil {
			return *changed, nil
		}
		if !errors.Is(err, eventlog.ErrConflict) {
			return Record{}, fmt.Errorf("write the record of the installation: %w", err)
		}
	}
}

func (r Record) clone() Record {
	r.Keys, r.Members = maps.Clone(r.Keys), maps.Clone(r.Members)
	return r
}

// Reason is the reason of the error that Check returns.
const Reason = "OTHER_INSTALLATION"

// Check returns an error with all reasons why a control plane cannot become a member. keys has the
// fingerprints of its keys by name. A key ring has several fingerprints; one of them must be in the
// record. eventVersion is the highest version of events that the control plane can read. No control
// plane can join while a restore is not complete.
func (r Record) Check(keys map[string][]string, eventVersion int) error {
	if r.Restore != nil {
		return r.Restore.incomplete()
	}
	var lacks, differ, reasons []string
	for _, name := range slices.Sorted(maps.Keys(r.Keys)) {
		switch own := keys[name]; {
		case len(own) == 0:
			lacks = append(lacks, name)
		case !slices.Contains(own, r.Keys[name]):
			differ = append(differ, name)
		}
	}
	if len(lacks) > 0 {
		reasons = append(reasons, "it has no key named "+strings.Join(lacks, ", "))
	}
	if len(differ) > 0 {
		reasons = append(reasons, "its keys differ from those of the installation ("+strings.Join(differ, ", ")+")")
	}
	if len(reasons) > 0 {
		reasons = []string{strings.Join(reasons, " and ") + ": run `anneal server bundle FILE` on the machine of a control " +
			"plane of the installation, and `anneal server join FILE` here, with an empty directory as --data; if this is a " +
			"new installation, choose another NATS cluster"}
	}
	if r.EventVersion > eventVersion {
		reasons = append(reasons, fmt.Sprintf("the log may have events of version %d, but this version of anneal reads "+
			"events up to version %d: start the newer version", r.EventVersion, eventVersion))
	}
	if len(reasons) == 0 {
		return nil
	}
	return &domain.Error{Code: domain.FailedPrecondition, Reason: Reason,
		Message: "this control plane cannot join the installation whose log is in the NATS cluster; nothing was changed. " +
			strings.Join(reasons, ". Also, ")}
}

package installation

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/nats-io/nuid"

	"anneal/domain"
	"anneal/eventlog/kv"
)

// Options configure a Membership.
type Options struct {
	Conn     *nats.Conn // connection to the NATS account CONTROL
	Replicas int        // replicas of the record's stream; 0 keeps those of an existing stream
	ID       string     // ID of the control plane
	Release  string     // version of anneal
	// EventVersion is the maximum version of events that this control plane can read.
	EventVersion int
	Keys         map[string][]string // fingerprints of the keys by name; see Record.Check
	Logger       *slog.Logger
	Interval     time.Duration // interval of the heartbeats; 0 is 1 s
}

// Multiples of Options.Interval.
const (
	gapAfter      = 3  // a control plane that misses its own heartbeats for this time may have missed others
	beforeLeading = 2  // a control plane listens for this time before it leads
	silentAfter   = 5  // without a heartbeat for this time, a control plane no longer leads
	removeAfter   = 30 // after this time without a heartbeat, it is removed from the record
)

// A Membership represents one control plane as a member of an installation. It sends heartbeats to
// the other members, receives theirs, and decides which member leads.
type Membership struct {
	o      Options
	boot   string
	bucket kv.Store
	now    func() time.Time

	mu           sync.Mutex
	since        time.Time            // from when on this control plane has received all heartbeats
	own          time.Time            // when this control plane last received a heartbeat of its own
	candidate    bool                 // see Stand
	candidates   map[string]time.Time // last heartbeat of each other control plane that can lead
	received     map[string]time.Time // last heartbeat of each other control plane
	eventVersion int
	leads        bool
	changed      chan struct{} // closed and replaced when leads changes
	duplicate    time.Time     // when a heartbeat of another process with the same ID was last logged
}

// Create creates the record of an installation, and the key-value bucket for it. If there is a
// record, Create checks it as Record.Check does. keys has the fingerprint of each key that control planes
// share.
func Create(ctx context.Context, nc *nats.Conn, replicas int, keys map[string]string, eventVersion int) error {
	bucket, err := open(ctx, nc, replicas)
	if err != nil {
		return err
	}
	own := map[string][]string{}
	for name, fingerprint := range keys {
		own[name] = []string{fingerprint}
	}
	_, err = update(ctx, bucket, func(r Record) (*Record, error) {
		if r.Keys != nil {
			return nil, r.Check(own, eventVersion)
		}
		return &Record{Keys: keys, EventVersion: eventVersion, Members: map[string]Member{}}, nil
	})
	return err
}

func open(ctx context.Context, nc *nats.Conn, replicas int) (kv.Store, error) {
	return kv.OpenBucket(ctx, nc, stream, "the record of the installation",
		func(ctx context.Context, js jetstream.JetStream, _ int) error { return ensure(ctx, js, replicas) })
}

// Join makes the control plane a member of the installation, after Record.Check. Run must follow.
func Join(ctx context.Context, o Options) (*Membership, error) {
	bucket, err := open(ctx, o.Conn, o.Replicas)
	if err != nil {
		return nil, err
	}
	if o.Interval == 0 {
		o.Interval = time.Second
	}
	m := &Membership{o: o, boot: nuid.Next(), bucket: bucket, now: time.Now, received: map[string]time.Time{},
		candidates: map[string]time.Time{},
		changed:    make(chan struct{})}
	return m, m.enter(ctx)
}

// enter adds the control plane to the record.
func (m *Membership) enter(ctx context.Context) error {
	record, err := update(ctx, m.bucket, func(r Record) (*Record, error) { return &r, m.addTo(&r) })
	if err != nil {
		return err
	}
	m.setEventVersion(record.EventVersion)
	if len(record.Members) == 1 { // no other control plane can lead
		m.since = m.now().Add(-beforeLeading * m.o.Interval)
	}
	return nil
}

func (m *Membership) addTo(r *Record) error {
	if r.Keys == nil {
		return domain.Errorf(domain.Unavailable, "the record of the installation is missing from the NATS cluster")
	}
	if err := r.Check(m.o.Keys, m.o.EventVersion); err != nil {
		return err
	}
	if r.Members == nil {
		r.Members = map[string]Member{}
	}
	r.Members[m.o.ID] = Member{m.boot, m.o.Release, m.o.EventVersion}
	return nil
}

// Leave removes the control plane from the record, so that the version of events can rise without
// it.
func (m *Membership) Leave(ctx context.Context) error {
	_, err := update(ctx, m.bucket, func(r Record) (*Record, error) {
		if r.Members[m.o.ID].Boot != m.boot {
			return nil, nil
		}
		delete(r.Members, m.o.ID)
		return &r, nil
	})
	return err
}

// EventVersion returns the maximum version of events that may be recorded: every member can read it.
func (m *Membership) EventVersion() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.eventVersion
}

func (m *Membership) setEventVersion(v int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v > m.eventVersion && m.eventVersion > 0 {
		m.o.Logger.Info("every control plane can read events of a newer version, which are recorded from now on; older "+
			"versions of anneal are refused", "eventVersion", v)
	}
	m.eventVersion = max(m.eventVersion, v)
}

// Stand makes the control plane a candidate for leader. Call it when the control plane is ready to
// do the work of a leader.
func (m *Membership) Stand() {
	m.mu.Lock()
	m.candidate = true
	m.mu.Unlock()
	m.elect()
}

// Leads reports whether the control plane leads. A candidate leads when no candidate from which it
// receives heartbeats has a lower ID. Several candidates may lead for a time, for example while the
// network is partitioned, so the work of a leader must be safe when two do it. changed is closed
// when the result changes.
func (m *Membership) Leads() (leads bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leads, m.changed
}

// heartbeatSubject is the subject of the heartbeats of a control plane.
func heartbeatSubject(id string) string { return "controlplanes." + id }

type heartbeat struct {
	ID   string `json:"id"`
	Boot string `json:"boot"`
	Gone bool   `json:"gone,omitempty"` // the control plane has stopped
	// Candidate is true when the control plane can lead.
	Candidate bool `json:"candidate,omitempty"`
}

// Run sends heartbeats, listens to those of other control planes, and keeps the record up to date,
// until ctx is done. It returns an error when the control plane can no longer be a member.
func (m *Membership) Run(ctx context.Context) error {
	subscription, err := m.o.Conn.Subscribe(heartbeatSubject("*"), m.recordHeartbeat)
	if err != nil {
		return fmt.Errorf("subscribe to heartbeats of control planes: %w", err)
	}
	defer func() { _ = subscription.Unsubscribe() }() // fails only when the connection is closed
	ticker := time.NewTicker(m.o.Interval)
	defer ticker.Stop()
	for {
		m.send(false)
		if err := m.maintain(ctx); err != nil && ctx.Err() == nil {
			if domain.CodeOf(err) == domain.FailedPrecondition {
				return err
			}
			m.o.Logger.Debug("record of the installation not maintained", "error", err)
		}
		m.elect()
		select {
		case <-ticker.C:
		case <-ctx.Done():
			m.send(true)
			return ctx.Err()
		}
	}
}

func (m *Membership) send(gone bool) {
	m.mu.Lock()
	candidate := m.candidate && m.listeningFor(m.now()) >= beforeLeading*m.o.Interval
	m.mu.Unlock()
	content, _ := json.Marshal(heartbeat{m.o.ID, m.boot, gone, candidate}) // never fails
	if err := m.o.Conn.Publish(heartbeatSubject(m.o.ID), content); err != nil {
		m.o.Logger.Debug("heartbeat of the control plane not sent", "error", err)
	}
}

// recordHeartbeat records a heartbeat.
func (m *Membership) recordHeartbeat(msg *nats.Msg) {
	var h heartbeat
	if json.Unmarshal(msg.Data, &h) != nil || h.ID == "" {
		return
	}
	m.mu.Lock()
	now := m.now()
	switch {
	case h.Boot == m.boot:
		if m.listeningFor(now) == 0 && (!m.own.IsZero() || m.since.IsZero()) {
			m.since = now
		}
		m.own = now
	case h.ID == m.o.ID && !h.Gone && now.Sub(m.duplicate) > time.Minute:
		m.duplicate = now
		m.o.Logger.Error("another running control plane has the same ID: give one of them another --name, or another data "+
			"directory", "id", h.ID)
	case h.ID == m.o.ID:
	case h.Gone:
		delete(m.received, h.ID)
		delete(m.candidates, h.ID)
	default:
		m.received[h.ID] = now
		if h.Candidate {
			m.candidates[h.ID] = now
		}
	}
	m.mu.Unlock()
	m.elect()
}

// listeningFor returns for how long this control plane has received all heartbeats. It returns 0 when
// the control plane has not received its own heartbeats for gapAfter intervals, because the process
// was paused or the connection is interrupted.
func (m *Membership) listeningFor(now time.Time) time.Duration {
	if now.Sub(m.own) > gapAfter*m.o.Interval {
		return 0
	}
	return now.Sub(m.since)
}

// elect decides whether this control plane leads. It leads only after it has listened for a while, so
// that a control plane that starts does not disturb the leader.
func (m *Membership) elect() {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, silence := m.now(), silentAfter*m.o.Interval
	leads := m.candidate && m.listeningFor(now) >= beforeLeading*m.o.Interval
	for id, last := range m.candidates {
		if id < m.o.ID && now.Sub(last) < silence {
			leads = false
		}
	}
	if leads != m.leads {
		m.leads = leads
		close(m.changed)
		m.changed = make(chan struct{})
		m.o.Logger.Debug("leadership changed", "leads", leads)
	}
}

// maintain adds this control plane to the record if it is missing, removes the members that are
// silent, and raises the version of events when all members can read a higher one.
func (m *Membership) maintain(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, m.o.Interval)
	defer cancel()
	record, err := update(ctx, m.bucket, func(r Record) (*Record, error) {
		before := r.clone()
		if err := m.addTo(&r); err != nil {
			return nil, err
		}
		silent := m.silent(r.Members)
		maps.DeleteFunc(r.Members, func(id string, _ Member) bool { return slices.Contains(silent, id) })
		r.EventVersion = max(r.EventVersion, lowestVersion(r.Members))
		if r.EventVersion == before.EventVersion && maps.Equal(r.Members, before.Members) {
			return nil, nil
		}
		return &r, nil
	})
	if err == nil {
		m.setEventVersion(record.EventVersion)
	}
	return err
}

// silent returns the IDs of the members from which no heartbeat was received for removeAfter
// intervals, although this process received all heartbeats in that time. For a member that has sent
// none, the time begins when this process first finds it in the record.
func (m *Membership) silent(members map[string]Member) (silent []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now, limit := m.now(), removeAfter*m.o.Interval
	listening := m.listeningFor(now)
	for id := range members {
		if _, known := m.received[id]; !known {
			m.received[id] = now
		}
		if id != m.o.ID && listening >= limit && now.Sub(m.received[id]) >= limit {
			silent = append(silent, id)
			delete(m.received, id) // it may return
		}
	}
	return silent
}

// lowestVersion returns the maximum version of events that all members can read.
func lowestVersion(members map[string]Member) int {
	versions := slices.Collect(func(yield func(int) bool) {
		for _, one := range members {
			if !yield(one.EventVersion) {
				return
			}
		}
	})
	if len(versions) == 0 {
		return 0
	}
	return slices.Min(versions)
}

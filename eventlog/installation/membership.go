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
	Conn     *nats.Conn // connection into the NATS account CONTROL
	Replicas int        // replicas of the stream with the record; 0 keeps those of an existing stream
	ID       string     // ID of this control plane
	Release  string     // version of the anneal program
	// EventVersion is the highest version of events that this control plane can read.
	EventVersion int
	Keys         map[string][]string // fingerprints of this control plane's keys, by the name of the key; see Record.Check
	Logger       *slog.Logger
	Interval     time.Duration // interval of the heartbeats; 0 means 1 s
}

// Times of the leader election, as multiples of Options.Interval.
const (
	// a control plane that received none of its own heartbeats for this time may have missed those of
	// others
	gapAfter      = 3
	beforeLeading = 2  // a control plane receives heartbeats for this time before it becomes the leader
	silentAfter   = 5  // a control plane that sent no heartbeat for this time is no longer the leader
	removeAfter   = 30 // a control plane that sent no heartbeat for this time is removed from the record
)

// A Membership makes this process a member of the installation. It exchanges heartbeats with the
// other control planes and elects the leader among them.
type Membership struct {
	o      Options
	boot   string
	bucket kv.Store
	now    func() time.Time

	mu           sync.Mutex
	since        time.Time            // every heartbeat that was sent since this time has reached this process
	own          time.Time            // when this process last received its own heartbeat
	candidate    bool                 // this control plane may become the leader, because Stand was called
	candidates   map[string]time.Time // by ID: last heartbeat of each other control plane that may become the leader
	received     map[string]time.Time // by ID: last heartbeat of each other control plane
	eventVersion int
	leads        bool
	changed      chan struct{} // closed and replaced when this control plane becomes or stops being the leader
	duplicate    time.Time     // when another process with the same ID was last logged
}

// Create creates the JetStream bucket and in it the record of an installation. When there is a
// record, Create checks it as Record.Check does. keys has the fingerprint of each key that the
// control planes share.
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
		if r.Keys != nil || r.Restore != nil {
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

// Join returns the Membership of this control plane. It first checks the record as Record.Check
// does, and then adds the control plane to it. The caller must then call Run.
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

// enter adds this control plane to the record of the installation.
func (m *Membership) enter(ctx context.Context) error {
	record, err := update(ctx, m.bucket, func(r Record) (*Record, error) { return &r, m.addTo(&r) })
	if err != nil {
		return err
	}
	m.setEventVersion(record.EventVersion)
	if len(record.Members) == 1 { // it is the only control plane, so it leads immediately
		m.since = m.now().Add(-beforeLeading * m.o.Interval)
	}
	return nil
}

func (m *Membership) addTo(r *Record) error {
	if r.Keys == nil && r.Restore == nil {
		return domain.Errorf(domain.Unavailable, "the NATS cluster has no record of the installation (stream "+
			"KV_INSTALLATION): check --nats-url, or restore a backup")
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

// Leave removes this control plane from the record, so that it no longer limits the version of the
// events that may be recorded.
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

// EventVersion returns the highest version of events that may be recorded: the highest one that
// every control plane can read.
func (m *Membership) EventVersion() int {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.eventVersion
}

func (m *Membership) setEventVersion(v int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if v > m.eventVersion && m.eventVersion > 0 {
		m.o.Logger.Info("all control planes can read events of a newer version, so such events are recorded from now on; "+
			"older versions of anneal can no longer join this installation", "eventVersion", v)
	}
	m.eventVersion = max(m.eventVersion, v)
}

// Stand makes this control plane a candidate for leader. The caller calls it when the control plane
// is ready to do the leader's work.
func (m *Membership) Stand() {
	m.mu.Lock()
	m.candidate = true
	m.mu.Unlock()
	m.elect()
}

// Leads reports whether this control plane is the leader. Among the candidates whose heartbeats
// arrive, the one with the lowest ID leads. Several control planes may lead for a time, for example
// during a network partition, so two of them must be able to do the leader's work at the same time
// without harm. changed is closed when the result changes.
func (m *Membership) Leads() (leads bool, changed <-chan struct{}) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.leads, m.changed
}

// heartbeatSubject is the NATS subject on which a control plane publishes its heartbeats.
func heartbeatSubject(id string) string { return "controlplanes." + id }

type heartbeat struct {
	ID      string `json:"id"`
	Boot    string `json:"boot"`
	Stopped bool   `json:"gone,omitempty"` // Stopped is true in the last heartbeat of a control plane that stops.
	// Candidate is true when the control plane may become the leader.
	Candidate bool `json:"candidate,omitempty"`
}

// Run sends heartbeats, receives those of other control planes, and updates the record, until ctx
// is done. It returns an error when the control plane can no longer be a member, for example
// because the log may have events of a version that it cannot read.
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
			m.o.Logger.Debug("cannot update the record of the installation: trying again; control planes that have stopped "+
				"stay in it until then", "error", err)
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

func (m *Membership) send(stopped bool) {
	m.mu.Lock()
	candidate := m.candidate && m.listeningFor(m.now()) >= beforeLeading*m.o.Interval
	m.mu.Unlock()
	// a heartbeat can always be encoded as JSON
	content, _ := json.Marshal(heartbeat{m.o.ID, m.boot, stopped, candidate})
	if err := m.o.Conn.Publish(heartbeatSubject(m.o.ID), content); err != nil {
		m.o.Logger.Debug("cannot send the heartbeat of this control plane: another control plane may become the "+
			"leader", "error", err)
	}
}

// recordHeartbeat records the time of a received heartbeat.
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
	case h.ID == m.o.ID && !h.Stopped && now.Sub(m.duplicate) > time.Minute:
		m.duplicate = now
		m.o.Logger.Error("another running control plane has the same ID: start one of them with another --name or "+
			"another data directory", "id", h.ID)
	case h.ID == m.o.ID:
	case h.Stopped:
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

// listeningFor returns for how long this process has received all heartbeats. It returns 0 when the
// process has not received its own heartbeats for gapAfter intervals, because it was paused or the
// connection was interrupted.
func (m *Membership) listeningFor(now time.Time) time.Duration {
	if now.Sub(m.own) > gapAfter*m.o.Interval {
		return 0
	}
	return now.Sub(m.since)
}

// elect decides whether this control plane leads, and sets leads. A control plane that has just
// started does not lead until it has received heartbeats for beforeLeading intervals, so that it
// does not replace a running leader without need.
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

// maintain updates the record: it adds this control plane if it is missing, removes control planes
// that send no heartbeats, and raises the version of events when all members can read a higher one.
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
			delete(m.received, id) // the time without a heartbeat counts from the member's next heartbeat
		}
	}
	return silent
}

// lowestVersion returns the highest version of events that all members can read.
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

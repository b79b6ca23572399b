package audit

import (
	"context"
	"iter"
	"log/slog"
	"sync"
	"time"

	"github.com/google/uuid"
	"github.com/prometheus/client_golang/prometheus"
)

// A Store holds the records of an installation.
type Store interface {
	// Append stores records. After an error, some of them may be stored; storing them again within two
	// minutes does not store them twice.
	Append(ctx context.Context, records []Record) error
	// Read yields the records of an account, oldest first; those of all accounts and of callers that
	// were not authenticated if all is true. It yields a DamagedError in place of a record that it cannot
	// decode, and continues.
	Read(ctx context.Context, account string, all bool) iter.Seq2[Record, error]
}

const (
	queued     = 4096 // records that wait for the store
	batch      = 256  // records that are stored at once
	appendTime = 5 * time.Second
	retryPause = time.Second
	closeTime  = 2 * time.Second // time to store the last records when the server stops
)

// Options configure a Recorder.
type Options struct {
	Store     Store
	ID        string // ID of the control plane
	Addresses bool   // store the addresses of clients
	Now       func() time.Time
	Logger    *slog.Logger
	Metrics   prometheus.Registerer // nil registers no metrics
}

// A Recorder stores records without delay for the caller: they wait in a bounded queue. What the
// queue cannot hold is dropped and counted. A nil Recorder stores nothing.
type Recorder struct {
	options Options
	limits  limits
	queue   chan entry
	metrics metrics

	mu      sync.Mutex
	dropped int // since the last record of RecordsDropped
}

// An entry of the queue is a record or, with done, a request to close done when all records before it
// are stored or dropped.
type entry struct {
	record Record
	done   chan struct{}
}

type metrics struct {
	records *prometheus.CounterVec
	dropped prometheus.Counter
}

// NewRecorder returns a recorder. Its Run stores what it records.
func NewRecorder(o Options) *Recorder {
	r := &Recorder{options: o, limits: limits{buckets: map[limitKey]*bucket{}}, queue: make(chan entry, queued),
		metrics: metrics{
			records: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_audit_records_total",
				Help: "Audit records that were stored, by kind."}, []string{"kind"}),
			dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_audit_records_dropped_total",
				Help: "Audit records that were lost, because NATS or the disk did not accept them in time."}),
		}}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.metrics.records, r.metrics.dropped)
	}
	return r
}

// Record stores a record later. It sets the record's ID, time and control plane.
func (r *Recorder) Record(record Record) {
	if r == nil {
		return
	}
	now := r.options.Now().UTC()
	id, err := uuid.NewV7()
	if err != nil {
		r.drop(1)
		return
	}
	record.ID, record.Time, record.ControlPlane = id.String(), now, r.options.ID
	record = record.bounded()
	if !r.limits.admit(record, now) {
		return
	}
	r.enqueue(record)
}

func (r *Recorder) enqueue(record Record) {
	if !r.options.Addresses {
		record.ClientAddress = ""
	}
	select {
	case r.queue <- entry{record: record}:
	default:
		r.drop(record.events())
	}
}

func (r *Recorder) drop(n int) {
	r.metrics.dropped.Add(float64(n))
	r.mu.Lock()
	defer r.mu.Unlock()
	r.dropped += n
}

// Read yields the stored records: see Store.
func (r *Recorder) Read(ctx context.Context, account string, all bool) iter.Seq2[Record, error] {
	if r == nil {
		return func(func(Record, error) bool) {}
	}
	return r.options.Store.Read(ctx, account, all)
}

// Flush waits until the records so far are stored or dropped, except those that wait for the limit of
// their client.
func (r *Recorder) Flush(ctx context.Context) error {
	if r == nil {
		return nil
	}
	done := make(chan struct{})
	select {
	case r.queue <- entry{done: done}:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Run stores records until ctx is done, and then those that wait, for at most closeTime.
func (r *Recorder) Run(ctx context.Context) error {
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			r.finish(ctx)
			return ctx.Err()
		case <-ticker.C:
			for _, record := range r.limits.flush(r.options.Now(), false) {
				r.enqueue(record)
			}
		case first := <-r.queue:
			r.store(ctx, r.take(first))
		}
	}
}

// take returns the first entry and those that wait after it, at most batch.
func (r *Recorder) take(first entry) []entry {
	entries := []entry{first}
	for len(entries) < batch {
		select {
		case next := <-r.queue:
			entries = append(entries, next)
		default:
			return entries
		}
	}
	return entries
}

// store stores entries. While the store accepts none, it tries again, and the queue fills.
func (r *Recorder) store(ctx context.Context, entries []entry) {
	records := recordsOf(entries)
	lost := r.takeDropped()
	if lost.Repeated > 0 {
		records = append(records, lost)
	}
	for failures := 0; ; failures++ {
		err := r.append(ctx, records)
		if err == nil {
			break
		}
		if failures == 0 {
			r.options.Logger.Warn("audit records are not stored yet", "records", len(records), "error", err)
		}
		select {
		case <-ctx.Done():
			r.logDropped(records, err)
			closeAll(entries)
			return
		case <-time.After(retryPause):
		}
	}
	closeAll(entries)
}

func (r *Recorder) append(ctx context.Context, records []Record) error {
	if len(records) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, appendTime)
	defer cancel()
	if err := r.options.Store.Append(ctx, records); err != nil {
		return err
	}
	for _, record := range records {
		r.metrics.records.WithLabelValues(record.Kind).Inc()
	}
	return nil
}

// takeDropped returns a record of how many records were dropped since the last one. Its Repeated is 0 if
// none were.
func (r *Recorder) takeDropped() Record {
	r.mu.Lock()
	defer r.mu.Unlock()
	id, err := uuid.NewV7()
	if err != nil || r.dropped == 0 {
		return Record{}
	}
	lost := Record{ID: id.String(), Time: r.options.Now().UTC(), Kind: RecordsDropped, Repeated: r.dropped,
		Actor: "control-plane", ControlPlane: r.options.ID}
	r.dropped = 0
	return lost
}

// logDropped counts and logs records that will not be stored, because the server stops.
func (r *Recorder) logDropped(records []Record, err error) {
	n := 0
	for _, record := range records {
		if record.Kind != RecordsDropped { // its records are counted already
			n += record.events()
		}
	}
	r.metrics.dropped.Add(float64(n))
	if n > 0 {
		r.options.Logger.Warn("audit records were dropped, because the server stops", "records", n, "error", err)
	}
}

// finish stores what waits when ctx is done.
func (r *Recorder) finish(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTime)
	defer cancel()
	for _, record := range r.limits.flush(r.options.Now(), true) {
		r.enqueue(record)
	}
	for {
		select {
		case first := <-r.queue:
			entries := r.take(first)
			if err := r.append(ctx, recordsOf(entries)); err != nil {
				r.logDropped(recordsOf(entries), err)
			}
			closeAll(entries)
		default:
			if lost := r.takeDropped(); lost.Repeated > 0 {
				_ = r.append(ctx, []Record{lost}) // the metric has the number
			}
			return
		}
	}
}

func recordsOf(entries []entry) (records []Record) {
	for _, one := range entries {
		if one.done == nil {
			records = append(records, one.record)
		}
	}
	return records
}

func closeAll(entries []entry) {
	for _, one := range entries {
		if one.done != nil {
			close(one.done)
		}
	}
}

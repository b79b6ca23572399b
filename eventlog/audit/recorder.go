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

// A Store stores the audit records of an installation.
type Store interface {
	// Append stores records. After an error, some of them may be stored. The caller can append the
	// same records again: a record that was stored less than two minutes ago is not stored twice.
	Append(ctx context.Context, records []Record) error
	// Read yields the records of an account, oldest first. If all is true, it yields the records of
	// all accounts and of callers that were not authenticated. In place of a record that it cannot
	// decode it yields a DamagedError, and continues.
	Read(ctx context.Context, account string, all bool) iter.Seq2[Record, error]
}

const (
	queued     = 4096 // maximum number of records in the queue
	batch      = 256  // maximum number of records in one call of Store.Append
	appendTime = 5 * time.Second
	retryPause = time.Second
	closeTime  = 2 * time.Second // maximum time for storing the remaining records when the server stops
)

// Options configure a Recorder.
type Options struct {
	Store     Store
	ID        string // ID of the control plane, for the field ControlPlane
	Addresses bool   // whether records have the IP addresses of clients
	Now       func() time.Time
	Logger    *slog.Logger
	Metrics   prometheus.Registerer // where the metrics are registered; nil registers none
}

// A Recorder stores audit records in the background, through a bounded queue, so that a request
// does not wait for the store. When the queue is full, records are dropped and counted. A nil
// Recorder stores nothing.
type Recorder struct {
	options Options
	limits  limits
	queue   chan entry
	metrics metrics

	mu      sync.Mutex
	dropped int // records dropped since the last record of the kind RecordsDropped
}

// An entry is an element of the queue: a record or, if done is not nil, a request of Flush. A
// request's channel is closed when all records before it are stored or dropped.
type entry struct {
	record Record
	done   chan struct{}
}

type metrics struct {
	records *prometheus.CounterVec
	dropped prometheus.Counter
}

// NewRecorder returns a recorder. The caller must also call Run, which stores the records that
// Record enqueues.
func NewRecorder(o Options) *Recorder {
	r := &Recorder{options: o, limits: limits{buckets: map[limitKey]*bucket{}}, queue: make(chan entry, queued),
		metrics: metrics{
			records: prometheus.NewCounterVec(prometheus.CounterOpts{Name: "anneal_audit_records_total",
				Help: "Audit records that were stored, by kind."}, []string{"kind"}),
			dropped: prometheus.NewCounter(prometheus.CounterOpts{Name: "anneal_audit_records_dropped_total",
				Help: "Audit records that were dropped, because the queue was full or the server stopped before they were " +
					"stored."}),
		}}
	if o.Metrics != nil {
		o.Metrics.MustRegister(r.metrics.records, r.metrics.dropped)
	}
	return r
}

// Record enqueues a record and sets its ID, time and control plane. It drops the record when the
// queue is full.
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

// Read yields the stored records as Store.Read does.
func (r *Recorder) Read(ctx context.Context, account string, all bool) iter.Seq2[Record, error] {
	if r == nil {
		return func(func(Record, error) bool) {}
	}
	return r.options.Store.Read(ctx, account, all)
}

// Flush waits until all records that were enqueued before the call are stored or dropped, except
// those that the rate limit of their client holds back.
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

// Run stores enqueued records until ctx is done. It then stores the remaining records, for at most
// closeTime.
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

// take returns first and the entries that follow in the queue without waiting, at most batch
// entries in total.
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

// store stores the records of entries. It tries again while the Store returns errors; meanwhile the
// queue fills up.
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
			r.options.Logger.Warn("cannot store audit records: trying again; later records are dropped when the queue is "+
				"full", "records", len(records), "error", err)
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

// takeDropped returns a record of the kind RecordsDropped with the number of records that were
// dropped since the last call, and resets the number. When none were dropped, it returns the zero
// Record.
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

// logDropped counts and logs records that are lost because the server stops before they are stored.
func (r *Recorder) logDropped(records []Record, err error) {
	n := 0
	for _, record := range records {
		if record.Kind != RecordsDropped { // the dropped records that it reports were counted when they were dropped
			n += record.events()
		}
	}
	r.metrics.dropped.Add(float64(n))
	if n > 0 {
		r.options.Logger.Warn("audit records are lost, because the server stopped before they were "+
			"stored", "records", n, "error", err)
	}
}

// finish stores the records that are still in the queue after Run's ctx is done.
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
				_ = r.append(ctx, []Record{lost}) // if this fails, the number of lost records is still in the metric
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

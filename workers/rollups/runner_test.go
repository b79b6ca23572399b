package rollups

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/metering"
	"anneal/internal/testutil"
	"anneal/projections"
)

var noon = time.Date(2030, 1, 31, 12, 0, 0, 0, time.UTC)

// A stream is the stream of usage records, in memory.
type stream struct {
	mu      sync.Mutex
	created time.Time
	all     []metering.Record
}

func (s *stream) State(context.Context) (metering.State, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return metering.State{Created: s.created, Last: uint64(len(s.all))}, nil
}

func (s *stream) Read(_ context.Context, after, through uint64, visit func(metering.Record)) error {
	s.mu.Lock()
	all := s.all[min(after, uint64(len(s.all))):min(through, uint64(len(s.all)))]
	s.mu.Unlock()
	for _, one := range all {
		visit(one)
	}
	return nil
}

func (s *stream) Known(ctx context.Context, ids map[string]bool, _ time.Time, through uint64) (map[string]bool, error) {
	known := map[string]bool{}
	err := s.Read(ctx, 0, through, func(r metering.Record) { known[r.ID] = ids[r.ID] })
	return known, err
}

// A flaky log fails some appends, before or after it has recorded the event.
type flaky struct {
	eventlog.Log
	mu     sync.Mutex
	random *rand.Rand
	rate   float64
}

// newFlaky returns a log in memory that has its own random numbers, because control planes append
// at once.
func newFlaky(random *rand.Rand) *flaky {
	return &flaky{Log: eventlog.NewMemory(), random: rand.New(rand.NewPCG(random.Uint64(), random.Uint64()))}
}

var errKilled = errors.New("the process was killed")

func (f *flaky) Append(ctx context.Context, w eventlog.Write) (uint64, error) {
	f.mu.Lock()
	before, after := f.random.Float64() < f.rate, f.random.Float64() < f.rate
	f.mu.Unlock()
	if before {
		return 0, errKilled
	}
	position, err := f.Log.Append(ctx, w)
	if after && err == nil {
		return 0, errKilled
	}
	return position, err
}

// A harness is an installation with several control planes, whose clocks differ.
type harness struct {
	*testing.T
	log    *flaky
	world  *projections.World
	stream *stream
	random *rand.Rand

	mu      sync.Mutex
	now     time.Time
	skew    time.Duration
	numbers map[string]uint64
	repeats bool // whether some records repeat an earlier one
}

func newHarness(t *testing.T, seed uint64) *harness {
	random := rand.New(rand.NewPCG(seed, 0))
	b := &harness{T: t, log: newFlaky(random), world: projections.NewWorld(),
		random: random, stream: &stream{created: noon}, now: noon, numbers: map[string]uint64{}, repeats: seed%2 == 0}
	go func() { _ = b.world.Run(t.Context(), b.log) }()
	return b
}

func (b *harness) clock() time.Time {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.now.Add(b.skew)
}

func (b *harness) runner() *Runner {
	return &Runner{Log: b.log, World: b.world, Records: b.stream, Now: b.clock, Logger: slog.New(slog.DiscardHandler),
		MaxWaiting: 40}
}

// record adds a usage record of a control plane, whose request ended at a time.
func (b *harness) record(plane string, at time.Time, id string) metering.Record {
	b.stream.mu.Lock()
	defer b.stream.mu.Unlock()
	b.numbers[plane]++
	if id == "" {
		id = uuid.Must(uuid.NewV7()).String()
	}
	account := []string{"acme", "other"}[b.random.IntN(2)]
	r := metering.Record{Time: at, ID: id, ControlPlane: plane, Number: b.numbers[plane], Account: account,
		Key:        domain.NewName(account, "apiKeys", fmt.Sprint("k", b.random.IntN(3))),
		Deployment: domain.NewName(account, "deployments", fmt.Sprint("d", b.random.IntN(2))),
		Model:      fmt.Sprint("m", b.random.IntN(2)), PromptTokens: b.random.IntN(100), CompletionTokens: b.random.IntN(9),
		CachedPromptTokens: b.random.IntN(9), AudioSeconds: float64(b.random.IntN(99)) / 10}
	b.stream.all = append(b.stream.all, r)
	return r
}

func (b *harness) node(id string, command domain.Command[domain.Node]) {
	name := domain.NewName(domain.System, domain.Nodes.Collection, id)
	_, err := eventlog.Do(b.Context(), b.log.Log, b.world, eventlog.Request{Time: b.clock()},
		domain.Intend(domain.Nodes, name, command))
	var refused *domain.Error
	if err != nil {
		require.ErrorAs(b, err, &refused)
	}
	last, err := b.log.Last(b.Context())
	require.NoError(b, err)
	require.NoError(b, b.world.WaitFor(b.Context(), last.Position))
}

// change changes the allocations of a node at random.
func (b *harness) change() {
	id := fmt.Sprint("n", b.random.IntN(3))
	n := b.random.IntN(8)
	one := domain.Allocation{ID: fmt.Sprint("a", n), For: "accounts/acme/deployments/d1", Resources: domain.Resources{
		CPUMilli: 1, Accelerators: map[string]int{"VENDOR_A_H100_80GB": 1 + n%2}}}
	if n%4 == 0 {
		one.Resources.Share = domain.DeviceShare{Milli: 250, Slot: n}
	}
	if n%3 == 0 {
		one.For = "accounts/other/supervisedFineTuningJobs/j"
	}
	switch b.random.IntN(9) {
	case 0:
		b.node(id, domain.LoseNode{Reason: "test"})
	case 1, 2:
		b.node(id, domain.RegisterNode{NodeSpec: domain.NodeSpec{Engines: []string{"train"}, Capacity: domain.Resources{
			CPUMilli: 99, Accelerators: map[string]int{"VENDOR_A_H100_80GB": 99}}}})
	case 3, 4, 5:
		b.node(id, domain.ReleaseAllocation{ID: one.ID, Reason: "test"})
	default:
		b.node(id, domain.PlaceAllocation{Allocation: one})
	}
}

// stepAll steps until nothing is due.
func stepAll(t *testing.T, r *Runner) {
	t.Helper()
	for {
		more, err := r.Step(t.Context())
		require.NoError(t, err)
		if !more {
			return
		}
	}
}

type totals map[domain.AccountUsage]domain.UsageAmounts

func (t totals) add(account string, row domain.UsageRow) {
	amounts := row.UsageAmounts
	row.UsageAmounts, row.Hour = domain.UsageAmounts{}, row.Hour.UTC()
	key := domain.AccountUsage{Account: account, UsageRow: row}
	if t[key] = t[key].Plus(amounts); t[key] == (domain.UsageAmounts{}) {
		delete(t, key)
	}
}

// rolledUp returns the sums of the events of windows up to one.
func (b *harness) rolledUp(last uint64) (sums totals, corrections int) {
	sums = totals{}
	parts := map[string]int{}
	for e, err := range b.log.Read(b.Context(), "events.*.usageRollups.*", 0) {
		require.NoError(b, err)
		event, err := domain.UsageRollups.Decode(e.Record)
		require.NoError(b, err)
		part, ok := domain.UsagePartOf(event)
		if !ok {
			continue
		}
		if _, corrected := event.(domain.UsageCorrected); corrected {
			corrections++
		}
		if part.Window > last {
			continue
		}
		key := fmt.Sprint(e.Name, part.Window)
		require.Equal(b, parts[key]+1, part.Part, "each part is recorded once, in order")
		parts[key] = part.Part
		require.LessOrEqual(b, len(part.Rows), domain.MaxUsageRows)
		for _, row := range part.Rows {
			require.Equal(b, e.Name, domain.UsageMonth(e.Name.Account(), row.Hour))
			sums.add(e.Name.Account(), row)
		}
	}
	return sums, corrections
}

// wanted sums up the records, each ID once, and the allocations of the log, from the start to the
// end of each, or up to a time if it continues. It shares no code with the runner.
func (b *harness) wanted(until time.Time) totals {
	sums, seen := totals{}, map[string]bool{}
	for _, r := range b.stream.all {
		if seen[r.ID] {
			continue
		}
		seen[r.ID] = true
		sums.add(r.Account, domain.UsageRow{Hour: r.Time.Truncate(time.Hour), Key: r.Key, Model: r.Model,
			Deployment: r.Deployment, UsageAmounts: domain.UsageAmounts{Requests: 1, PromptTokens: int64(r.PromptTokens),
				CachedPromptTokens: int64(r.CachedPromptTokens), CompletionTokens: int64(r.CompletionTokens),
				AudioMicroseconds: int64(r.AudioSeconds*10+0.5) * 100_000}})
	}
	type span struct {
		domain.Allocation
		from time.Time
	}
	open := map[string]span{}
	end := func(key string, to time.Time) {
		one := open[key]
		delete(open, key)
		for at := one.from; at.Before(to); at = at.Add(10 * time.Second) { // all times are multiples of 10 s
			row := domain.UsageRow{Hour: at.Truncate(time.Hour), Accelerator: "VENDOR_A_H100_80GB"}
			if row.Deployment = one.For; one.For.Collection() != "deployments" {
				row.Job, row.Deployment = one.For, ""
			}
			row.AcceleratorMicroseconds = int64(one.Resources.Accelerators[row.Accelerator]) * 10_000_000
			if one.Resources.Share.Milli > 0 {
				row.AcceleratorMicroseconds = 2_500_000
			}
			sums.add(one.For.Account(), row)
		}
	}
	for e, err := range b.log.Read(b.Context(), "events.system.nodes.*", 0) {
		require.NoError(b, err)
		event, err := domain.Nodes.Decode(e.Record)
		require.NoError(b, err)
		switch one := event.(type) {
		case domain.AllocationPlaced:
			open[string(e.Name)+one.ID] = span{one.Allocation, e.Time}
		case domain.AllocationReleased:
			end(string(e.Name)+one.ID, e.Time)
		case domain.NodeLost:
			for key := range open {
				if key[:len(e.Name)] == string(e.Name) {
					end(key, e.Time)
				}
			}
		}
	}
	for key := range open {
		end(key, until)
	}
	return sums
}

// checkLedger checks that the windows follow each other and contain the numbers of each control
// plane without gaps, and returns the number of records in them.
func (b *harness) checkLedger() (records int64) {
	var last domain.UsageWindow
	numbers := map[string]uint64{}
	for e, err := range b.log.Read(b.Context(), domain.UsageLedger.Subject(), 0) {
		require.NoError(b, err)
		event, err := domain.UsageRollups.Decode(e.Record)
		require.NoError(b, err)
		switch one := event.(type) {
		case domain.UsageWindowOpened:
			require.Equal(b, last.Number+1, one.Number)
			require.Equal(b, last.To, one.From)
			require.True(b, last.Until.Equal(one.Since))
			last = one.UsageWindow
		case domain.UsageWindowCompleted:
			require.Equal(b, last.Number, one.Window)
			for _, r := range one.Records {
				require.Equal(b, numbers[r.Source]+1, r.From, r.Source)
				require.Equal(b, r.To-r.From+1, uint64(r.Count), r.Source)
				numbers[r.Source] = r.To
				records += r.Count
			}
		}
	}
	return records
}

// TestUsageIsRolledUpExactly checks that the sums of all roll-ups are those of the usage records
// and of the allocations in the log: with two runners at once, appends that fail or are not
// acknowledged, runners that begin again, late and repeated records, and clocks that jump. Set
// ANNEAL_SEEDS for more than a few runs.
func TestUsageIsRolledUpExactly(t *testing.T) {
	seeds := testutil.Variable(t, "ANNEAL_SEEDS", 6)
	corrected := 0
	for seed := range uint64(seeds) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			corrected += simulate(t, newHarness(t, seed))
		})
	}
	require.Positive(t, corrected)
}

func simulate(t *testing.T, b *harness) (corrections int) {
	runners := []*Runner{b.runner(), b.runner()}
	batch := func() string {
		if !b.repeats || b.random.IntN(5) > 0 {
			return ""
		}
		return uuid.NewSHA1(uuid.NameSpaceOID, []byte{byte(b.random.IntN(9))}).String()
	}
	repeated := map[string]metering.Record{}
	for range 60 {
		b.mu.Lock()
		b.now = b.now.Add(time.Duration(b.random.IntN(120)) * 10 * time.Second)
		b.skew = 0
		if b.random.IntN(6) == 0 { // the clock of this control plane is wrong until it is corrected
			b.skew = time.Duration(b.random.IntN(80)-40) * 6 * time.Minute
		}
		b.mu.Unlock()
		b.change()
		for range b.random.IntN(12) {
			at := b.clock()
			if b.random.IntN(20) == 0 {
				at = at.Add(-time.Duration(b.random.IntN(300)) * time.Minute) // the record waited in a spool
			}
			id := batch()
			one := b.record(fmt.Sprint("cp-", b.random.IntN(2)), at, id)
			if first, known := repeated[id]; known && id != "" { // the record repeats the same usage
				one.Time, one.Account, one.Key, one.Deployment, one.Model = first.Time, first.Account, first.Key,
					first.Deployment, first.Model
				one.PromptTokens, one.CachedPromptTokens, one.CompletionTokens, one.AudioSeconds = first.PromptTokens,
					first.CachedPromptTokens, first.CompletionTokens, first.AudioSeconds
				b.stream.all[len(b.stream.all)-1] = one
			} else if id != "" {
				repeated[id] = one
			}
		}
		b.log.mu.Lock()
		b.log.rate = 0.2
		b.log.mu.Unlock()
		var both sync.WaitGroup
		for i := range runners {
			if b.random.IntN(8) == 0 {
				runners[i] = b.runner()
			}
			steps := b.random.IntN(4)
			both.Go(func() {
				for range steps {
					_, _ = runners[i].Step(t.Context())
				}
			})
		}
		both.Wait()
		b.log.mu.Lock()
		b.log.rate = 0
		b.log.mu.Unlock()
	}
	b.checkPending(t, runners[1])
	b.mu.Lock()
	b.now, b.skew = b.now.Add(9*time.Hour), 0
	b.mu.Unlock()
	stepAll(t, runners[0])
	stepAll(t, runners[1])
	got, corrections := b.rolledUp(math.MaxUint64)
	require.Equal(t, b.wanted(b.now.Add(-Grace).Truncate(time.Hour)), got)
	require.EqualValues(t, len(b.stream.all), b.checkLedger())
	b.checkPending(t, runners[1])
	return corrections
}

// checkPending checks that the roll-ups of complete windows and the pending usage together are all
// usage, also while a window is open. Repeated records are left out when their hour is rolled up.
func (b *harness) checkPending(t *testing.T, r *Runner) {
	b.mu.Lock()
	b.skew = 0
	b.now = b.now.Add(24 * time.Hour) // a time after all records
	b.mu.Unlock()
	if b.repeats {
		stepAll(t, r)
	} else {
		_, err := r.Step(t.Context()) // the step opens a window, or completes the open one
		require.NoError(t, err)
	}
	b.record("cp-0", b.clock(), "")
	rows, window, _, err := r.Pending(t.Context())
	require.NoError(t, err)
	sums, _ := b.rolledUp(window)
	for _, row := range rows {
		sums.add(row.Account, row.UsageRow)
	}
	require.Equal(t, b.wanted(b.now), sums)
}

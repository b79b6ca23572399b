package train

import (
	"context"
	"slices"
	"sync"
)

// Devices are devices, such as CPU cores, that the phases of reinforcement trainings share: while one
// training generates responses, another one takes steps. A phase that waits gets its devices before
// all phases that came later. The zero value has no devices.
type Devices struct {
	mu    sync.Mutex
	free  int // number of free devices; negative while devices that were removed are in use
	queue []*admission
}

// An admission is a phase that waits for n devices.
type admission struct {
	n       int
	granted chan struct{} // closed when the phase has its devices
}

// Add adds n devices, or removes −n. Devices in use are removed when they are released.
func (d *Devices) Add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free += n
	d.grant()
}

// grant admits the phases at the head of the queue for which there are enough free devices.
func (d *Devices) grant() {
	for len(d.queue) > 0 && d.queue[0].n <= d.free {
		d.free -= d.queue[0].n
		close(d.queue[0].granted)
		d.queue = d.queue[1:]
	}
}

// acquire waits for n devices. The caller must call release once.
func (d *Devices) acquire(ctx context.Context, n int) (release func(), err error) {
	own := &admission{n, make(chan struct{})}
	d.mu.Lock()
	d.queue = append(d.queue, own)
	d.grant()
	d.mu.Unlock()
	release = func() { d.Add(n) }
	select {
	case <-own.granted:
		return release, nil
	case <-ctx.Done():
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if i := slices.Index(d.queue, own); i >= 0 {
		d.queue = slices.Delete(d.queue, i, i+1)
	} else { // the devices were granted meanwhile
		d.free += n
	}
	d.grant()
	return nil, context.Cause(ctx)
}

// phases are the devices on which a training generates and trains. Nil has no limits.
type phases struct {
	devices [phaseCount]*Devices // devices of each phase; phases can have the same
	cores   int                  // number of devices that each phase uses
	// entered is called when a phase has its devices; nil except in tests.
	entered func(phase)
}

type phase int

const (
	phaseGenerate phase = iota // the model generates responses
	phaseLogProbs              // log-probabilities of the responses are computed, on devices that train
	phaseTrain
	phaseCount
)

// enter waits for the devices of a phase. The caller must call leave once.
func (p *phases) enter(ctx context.Context, which phase) (leave func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	leave, err = p.devices[which].acquire(ctx, p.cores)
	if err == nil && p.entered != nil {
		p.entered(which)
	}
	return leave, err
}

// shareCores sets the devices of the job's phases: its own cores, and those that other trainings have
// added to shared, unless it is nil. The caller must call done after the last phase.
func (j *job) shareCores(shared *Devices) (done func()) {
	if !j.stale() || j.phases != nil {
		return func() {}
	}
	if shared == nil {
		shared = &Devices{}
	}
	cores := j.loop.workers
	shared.Add(cores)
	j.phases = &phases{devices: [phaseCount]*Devices{shared, shared, shared}, cores: cores}
	return func() { shared.Add(-cores) }
}

// A turn holds the devices of a phase while at least one of several concurrent calls needs them.
type turn struct {
	phases *phases
	phase  phase
	lock   chan struct{} // guards the fields below; a channel, because acquiring devices takes long
	users  int
	leave  func()
}

func newTurn(p *phases, which phase) *turn {
	return &turn{phases: p, phase: which, lock: make(chan struct{}, 1)}
}

// during calls do while it holds the devices.
func (t *turn) during(ctx context.Context, do func() error) error {
	if t.phases == nil {
		return do()
	}
	t.lock <- struct{}{}
	if t.users == 0 {
		leave, err := t.phases.enter(ctx, t.phase)
		if err != nil {
			<-t.lock
			return err
		}
		t.leave = leave
	}
	t.users++
	<-t.lock
	defer func() {
		t.lock <- struct{}{}
		if t.users--; t.users == 0 {
			t.leave()
		}
		<-t.lock
	}()
	return do()
}

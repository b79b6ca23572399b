package train

import (
	"context"
	"slices"
	"sync"
)

// Devices is a pool of devices, such as CPU cores, that the phases of reinforcement trainings
// share: while one training generates responses, another one takes steps. The zero value has no
// devices.
//
// Phases get devices in FIFO order, except that trainings that hold no devices have priority over
// those that hold some for another phase. So a training that has added as many devices as a phase
// needs waits only while another training runs two phases at the same time, and at most until one
// of them ends.
type Devices struct {
	mu    sync.Mutex
	free  int             // number of free devices; negative while devices that were removed are in use
	held  map[*phases]int // number of devices of each training that has some
	queue []*admission
}

// An admission is a phase of a training that waits for devices.
type admission struct {
	owner   *phases
	granted chan struct{} // closed when the devices are granted
}

// Add adds n devices; a negative n removes devices. Devices in use are removed when they are
// released.
func (d *Devices) Add(n int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.free += n
	d.grant()
}

// grant admits phases while there are enough free devices for the next one.
func (d *Devices) grant() {
	for len(d.queue) > 0 {
		next := max(0, slices.IndexFunc(d.queue, func(a *admission) bool { return d.held[a.owner] == 0 }))
		one := d.queue[next]
		if one.owner.cores > d.free {
			return
		}
		d.take(one.owner, one.owner.cores)
		close(one.granted)
		d.queue = slices.Delete(d.queue, next, next+1)
	}
}

// take allocates n devices to a training; a negative n releases devices.
func (d *Devices) take(owner *phases, n int) {
	if d.held == nil {
		d.held = map[*phases]int{}
	}
	d.free -= n
	if d.held[owner] += n; d.held[owner] == 0 {
		delete(d.held, owner)
	}
}

func (d *Devices) release(owner *phases) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.take(owner, -owner.cores)
	d.grant()
}

// acquire waits for owner.cores devices. The caller must call release once.
func (d *Devices) acquire(ctx context.Context, owner *phases) (release func(), err error) {
	own := &admission{owner, make(chan struct{})}
	d.mu.Lock()
	d.queue = append(d.queue, own)
	d.grant()
	d.mu.Unlock()
	release = func() { d.release(owner) }
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
		d.take(owner, -owner.cores)
	}
	d.grant()
	return nil, context.Cause(ctx)
}

// phases has the devices on which a training generates and trains. With nil phases, nothing waits.
type phases struct {
	devices [phaseCount]*Devices // devices of each phase; phases can have the same
	cores   int                  // number of devices that each phase uses
	// entered is called when a phase has its devices; nil except in tests.
	entered func(phase)
}

type phase int

const (
	phaseGenerate phase = iota // the model generates responses
	phaseLogProbs              // the log-probabilities of the responses are computed
	phaseTrain
	phaseCount
)

// enter waits for the devices of a phase. The caller must call leave once.
func (p *phases) enter(ctx context.Context, which phase) (leave func(), err error) {
	if p == nil {
		return func() {}, nil
	}
	leave, err = p.devices[which].acquire(ctx, p)
	if err == nil && p.entered != nil {
		p.entered(which)
	}
	return leave, err
}

// shareCores sets the devices of the job's phases: its own cores, and those that other trainings
// have added to shared, unless it is nil. The caller must call done after the last phase.
func (j *job) shareCores(shared *Devices) (done func()) {
	if !stale(j.settings) || j.phases != nil {
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

// A turn holds the devices of a phase while at least one of several concurrent calls is in
// progress.
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

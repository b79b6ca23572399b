package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"

	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

const (
	maxSamples  = 1024 // maximum number of sampling operations that are executed concurrently
	maxSamplers = 16   // number of open samplers above which unused ones are closed
	maxKept     = 32   // maximum number of exported adapters that are kept on the disk for sampling
)

// serveSamples executes the operations of sampling sessions until the attempt is stopped.
func (s *trainingService) serveSamples() {
	var running sync.WaitGroup
	defer running.Wait()
	free := make(chan struct{}, maxSamples)
	for s.work.Err() == nil {
		select {
		case free <- struct{}{}: // wait for a free slot
			<-free
		case <-s.work.Done():
			return
		}
		s.mu.Lock()
		has := map[string][]int64{}
		for lane, seqs := range s.samples {
			for seq := range seqs {
				has[lane] = append(has[lane], seq)
			}
			slices.Sort(has[lane])
		}
		s.mu.Unlock()
		var reply protocol.TrainingOperations
		err := s.call(s.work, protocol.TrainingSamples, protocol.TrainingSamplesPull{Version: protocol.Version,
			TrainingAttempt: s.id(), Running: has, Max: max(1, maxSamples-len(free))}, &reply,
			func() (string, string) { return reply.Outcome, reply.Message })
		if err != nil {
			if s.work.Err() == nil {
				s.stop(fmt.Errorf("pull sampling operations: %w", err))
			}
			return
		}
		for _, operation := range reply.Operations {
			if !s.addSample(operation) {
				continue
			}
			free <- struct{}{}
			running.Go(func() {
				defer func() { <-free }()
				s.sample(operation)
				s.removeSample(operation)
			})
		}
	}
}

func (s *trainingService) addSample(o protocol.TrainingOperation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.samples[o.Lane][o.Seq] {
		return false
	}
	if s.samples[o.Lane] == nil {
		s.samples[o.Lane] = map[int64]bool{}
	}
	s.samples[o.Lane][o.Seq] = true
	return true
}

func (s *trainingService) removeSample(o protocol.TrainingOperation) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.samples[o.Lane], o.Seq)
	if len(s.samples[o.Lane]) == 0 {
		delete(s.samples, o.Lane)
	}
}

// sample executes one operation and sends its result.
func (s *trainingService) sample(o protocol.TrainingOperation) {
	result := protocol.TrainingResult{Version: protocol.Version, TrainingAttempt: s.id(), Lane: o.Lane, Samples: true,
		Seq: o.Seq}
	body, err := recoverPanic(func() ([]byte, error) { return s.draw(o) })
	var failure *domain.Error
	errors.As(err, &failure)
	switch {
	case s.work.Err() != nil:
		return // the next attempt executes the operation
	case failure != nil && failure.Code == domain.Unavailable:
		s.stop(fmt.Errorf("sampling: %w", err))
		return
	case err != nil:
		result.Error = s.errorOf(err)
	}
	result.Body = body
	if err := s.sendResult(&result); err != nil && s.life.Err() == nil && !errors.Is(err, errRunEnded) {
		s.stop(fmt.Errorf("send the result of a sampling operation: %w", err))
	}
}

func (s *trainingService) draw(o protocol.TrainingOperation) ([]byte, error) {
	o, err := s.complete(s.work, o, true)
	if err != nil {
		return nil, err
	}
	operation, err := engines.DecodeTrainOperation(o.Body)
	if err != nil {
		return nil, err
	}
	if operation.Sample == nil {
		return nil, domain.Errorf(domain.InvalidArgument, "a sampling session executes only samples")
	}
	sampler, release, err := s.samplers.acquire(s.work, operation.Sample.Weights, o.Files)
	if err != nil {
		return nil, err
	}
	defer release()
	operation.Sample.Share = s.share()
	samples, err := sampler.Sample(s.work, *operation.Sample)
	if err != nil {
		return nil, err
	}
	return engines.TrainOperationResult{Samples: &samples}.Encode()
}

// samplers caches the open samplers of a training service, by the weights of their requests.
type samplers struct {
	service *trainingService
	mu      sync.Mutex
	clock   uint64
	open    map[string]*sampler
	kept    map[string]string // by weights: directory of an adapter that this attempt has exported
	order   []string          // keys of kept, oldest first
}

type sampler struct {
	ready   chan struct{} // closed when the sampler is open, or err is set
	sampler engines.TrainSampler
	err     error
	free    func() // releases the files of the adapter
	users   int
	used    uint64 // value of samplers.clock at the last use
}

func newSamplers(s *trainingService) *samplers {
	return &samplers{service: s, open: map[string]*sampler{}, kept: map[string]string{}}
}

// keep makes samplers with the weights use the adapter in dir instead of downloading it. It returns
// false if it does not keep dir.
func (x *samplers) keep(weights, dir string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	if weights == "" || x.kept[weights] != "" {
		return false
	}
	x.kept[weights] = dir
	if x.order = append(x.order, weights); len(x.order) > maxKept {
		_ = os.RemoveAll(x.kept[x.order[0]]) // otherwise it is removed together with the directory of the attempt
		delete(x.kept, x.order[0])
		x.order = x.order[1:]
	}
	return true
}

// acquire returns the sampler with the weights, and opens it if necessary.
func (x *samplers) acquire(ctx context.Context, weights string, files *protocol.FileSet) (
	engines.TrainSampler, func(), error,
) {
	x.mu.Lock()
	one := x.open[weights]
	opens := one == nil
	if opens {
		one = &sampler{ready: make(chan struct{}), free: func() {}}
		x.open[weights] = one
	}
	one.users++
	x.clock++
	one.used = x.clock
	x.mu.Unlock()
	if opens {
		one.sampler, one.err = recoverPanic(func() (engines.TrainSampler, error) {
			return x.openSampler(ctx, one, weights, files)
		}) // others wait for it
		close(one.ready)
	}
	select {
	case <-one.ready:
	case <-ctx.Done():
	}
	err := context.Cause(ctx)
	if err == nil { // so the sampler is ready
		err = one.err
	}
	if err != nil {
		if opens && one.err != nil {
			x.mu.Lock()
			if x.open[weights] == one {
				delete(x.open, weights)
			}
			x.mu.Unlock()
			one.free()
		}
		x.release(one)
		return nil, nil, err
	}
	return one.sampler, func() { x.release(one) }, nil
}

func (x *samplers) openSampler(ctx context.Context, one *sampler, weights string, files *protocol.FileSet) (
	engines.TrainSampler, error,
) {
	kept := func() string {
		x.mu.Lock()
		defer x.mu.Unlock()
		return x.kept[weights]
	}
	dir := kept()
	if weights == "" || dir != "" {
		sampler, err := x.service.pool.OpenSampler(ctx, dir)
		if err == nil || kept() == dir { // otherwise keep has removed the directory meanwhile
			return sampler, err
		}
	}
	if files == nil {
		return nil, domain.Errorf(domain.NotFound, "the checkpoint to sample from does not exist: it was deleted "+
			"or has expired")
	}
	dir, free, err := x.service.agent.cache.acquire(ctx, *files)
	if err != nil {
		return nil, fmt.Errorf("download the adapter: %w", err)
	}
	one.free = free
	return x.service.pool.OpenSampler(ctx, dir)
}

// release ends the use of a sampler, and closes unused ones if there are too many.
func (x *samplers) release(one *sampler) {
	x.mu.Lock()
	one.users--
	var closing []*sampler
	for len(x.open) > maxSamplers {
		oldest := ""
		for weights, other := range x.open {
			if other.users == 0 && (oldest == "" || other.used < x.open[oldest].used) {
				oldest = weights
			}
		}
		if oldest == "" {
			break
		}
		closing = append(closing, x.open[oldest])
		delete(x.open, oldest)
	}
	x.mu.Unlock()
	for _, other := range closing {
		x.closeOne(other)
	}
}

func (x *samplers) closeOne(one *sampler) {
	if one.sampler != nil {
		if err := one.sampler.Close(); err != nil {
			x.service.log.Warn("cannot close a sampler", "error", err)
		}
	}
	one.free()
}

// close closes all samplers. None may be in use.
func (x *samplers) close() {
	x.mu.Lock()
	all := x.open
	x.open = map[string]*sampler{}
	x.mu.Unlock()
	for _, one := range all {
		x.closeOne(one)
	}
}

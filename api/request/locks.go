package request

import (
	"context"
	"sync"

	"anneal/domain"
)

// locks serialize the requests of this server with the same key. Requests with different keys never
// wait for one another. A key takes memory only while a request holds its lock or waits for it.
type locks struct {
	mu   sync.Mutex
	keys map[string]*lock
}

type lock struct {
	held  chan struct{} // has an element while a request holds the lock
	users int           // requests that hold the lock or wait for it; guarded by locks.mu
}

// enter waits until no other request holds the lock of the key, and holds it until the caller calls
// leave. It returns an error when ctx is done first.
func (l *locks) enter(ctx context.Context, key string) (leave func(), err error) {
	l.mu.Lock()
	if l.keys == nil {
		l.keys = map[string]*lock{}
	}
	k := l.keys[key]
	if k == nil {
		k = &lock{held: make(chan struct{}, 1)}
		l.keys[key] = k
	}
	k.users++
	l.mu.Unlock()
	select {
	case k.held <- struct{}{}:
		return func() {
			<-k.held
			l.forget(key, k)
		}, nil
	case <-ctx.Done():
		l.forget(key, k)
		return nil, domain.Errorf(domain.Unavailable,
			"another change of %s is still being recorded: wait until the log acknowledges it, then try again", key)
	}
}

func (l *locks) forget(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.keys, key)
	}
}

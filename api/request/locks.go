package request

import (
	"context"
	"sync"

	"anneal/domain"
)

// locks is a set of mutexes, one for each key, which serialize the requests of this server with the
// same key. A key takes memory only while a request holds its lock or waits for it.
type locks struct {
	mu   sync.Mutex
	keys map[string]*lock
}

type lock struct {
	held  chan struct{} // has capacity 1, and an element while a request holds the lock
	users int           // number of requests that hold the lock or wait for it; guarded by locks.mu
}

// enter locks the key, and waits while another request holds its lock. The caller must call leave
// to unlock the key. enter returns an error if ctx is done first.
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
			"another change of %s is still being recorded, and this request waited too long for it: try again", key)
	}
}

func (l *locks) forget(key string, k *lock) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if k.users--; k.users == 0 {
		delete(l.keys, key)
	}
}

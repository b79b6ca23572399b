package external

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"
	"time"

	"anneal/domain"
	"anneal/engines"
)

// A loader is a model whose server loads adapters while it serves requests, and reports its load: vLLM.
type loader struct{ *model }

// An addon is an adapter that the server has loaded. dir has a copy of its files, from which a
// restarted server loads it again.
type addon struct {
	dir   string
	users sync.WaitGroup // running requests that use the adapter
}

// addonName returns the name under which the server's API has an adapter.
func addonName(id string) string { return "addon-" + id }

var _ engines.AddonLoader = loader{}

// LoadAddon implements engines.AddonLoader.
func (m loader) LoadAddon(ctx context.Context, id, dir string) error {
	m.mu.Lock()
	_, loaded := m.addons[id]
	m.mu.Unlock()
	if loaded {
		return nil
	}
	own, err := os.MkdirTemp(m.own, "addon-*")
	if err != nil {
		return err
	}
	err = os.CopyFS(own, os.DirFS(dir))
	if err == nil {
		err = m.server.options.Runner.Grant(own)
	}
	if err == nil {
		err = m.server.loadAddon(ctx, id, own)
	}
	if err != nil {
		_ = os.RemoveAll(own) // the error of the load is returned instead
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.addons[id] = &addon{dir: own}
	return nil
}

// UnloadAddon implements engines.AddonLoader.
func (m loader) UnloadAddon(id string) error {
	m.mu.Lock()
	one := m.addons[id]
	delete(m.addons, id)
	m.mu.Unlock()
	if one == nil {
		return nil
	}
	_, err := m.server.unloadAddon(context.Background(), id)
	go func() {
		one.users.Wait()
		_ = os.RemoveAll(one.dir) // if this fails, Close removes it with the model's directory
	}()
	return err
}

// unloadTimeout is the maximum time to unload an adapter. While vLLM loads an adapter, a request to
// unload it waits until the load has finished.
const unloadTimeout = 30 * time.Second

// loadAddon loads the adapter in dir into the server. If that fails, it unloads the adapter,
// because the server may have loaded it although the response was lost or ctx was canceled. If the
// server rejects an adapter that it already has, loadAddon unloads the adapter and loads it once
// more.
func (s *server) loadAddon(ctx context.Context, id, dir string) error {
	load := func() error {
		return s.call(ctx, http.MethodPost, "/v1/load_lora_adapter", body{"lora_name": addonName(id), "lora_path": dir}, nil)
	}
	err := load()
	if err == nil {
		return nil
	}
	unloaded, _ := s.unloadAddon(ctx, id) // the error of the load is returned instead
	if !unloaded || domain.CodeOf(err) != domain.InvalidArgument {
		return err
	}
	if err = load(); err != nil {
		_, _ = s.unloadAddon(ctx, id) // the error of the load is returned instead
	}
	return err
}

// unloadAddon unloads an adapter from the server, also when ctx is done. unloaded is false if the
// server did not have the adapter, which is no error.
func (s *server) unloadAddon(ctx context.Context, id string) (unloaded bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unloadTimeout)
	defer cancel()
	err = s.call(ctx, http.MethodPost, "/v1/unload_lora_adapter", body{"lora_name": addonName(id)}, nil)
	if domain.CodeOf(err) == domain.InvalidArgument {
		return false, nil
	}
	return err == nil, err
}

// acquire returns the name under which the server's API has the adapter with the ID, or the model
// if id is "". Until the caller calls release, the adapter is not removed. It returns
// ErrAddonNotLoaded if the adapter is not loaded.
func (m *model) acquire(id string) (name string, release func(), err error) {
	if id == "" {
		return m.name, func() {}, nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	one := m.addons[id]
	if one == nil {
		return "", nil, engines.ErrAddonNotLoaded(id)
	}
	one.users.Add(1)
	return addonName(id), one.users.Done, nil
}

// restore loads the adapters into a restarted server at url.
func (m *model) restore(ctx context.Context, url string) error {
	m.mu.Lock()
	dirs := map[string]string{}
	for id, one := range m.addons {
		dirs[id] = one.dir
	}
	m.mu.Unlock()
	for id, dir := range dirs {
		b := body{"lora_name": addonName(id), "lora_path": dir}
		if err := m.server.callAt(ctx, url, http.MethodPost, "/v1/load_lora_adapter", b, nil); err != nil {
			return fmt.Errorf("load addon %s again: %w", id, err)
		}
	}
	return nil
}

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

// A loader is a model whose server loads adapters while it serves requests.
type loader struct{ *model }

// An addon is an adapter that the server has loaded. A restarted server loads it again from dir,
// a copy of the adapter's files.
type addon struct {
	dir   string
	users sync.WaitGroup // counts the running requests for the addon
}

// addonName returns the name of an addon in the server's API.
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
		_ = os.RemoveAll(own) // the first error is returned
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
		_ = os.RemoveAll(one.dir) // if the removal fails, Close removes the directory with that of the model
	}()
	return err
}

// unloadTimeout limits the unloading of an addon. While vLLM is loading an addon, a request to
// unload the addon waits until the load has finished.
const unloadTimeout = 30 * time.Second

// loadAddon loads the adapter in dir into the server. After an error loadAddon unloads the adapter,
// because the server may have loaded it although the response was lost or ctx was canceled. A
// server that already has the adapter rejects it; loadAddon then unloads the adapter and loads it
// once more.
func (s *server) loadAddon(ctx context.Context, id, dir string) error {
	load := func() error {
		return s.call(ctx, http.MethodPost, "/v1/load_lora_adapter", body{"lora_name": addonName(id), "lora_path": dir}, nil)
	}
	err := load()
	if err == nil {
		return nil
	}
	unloaded, _ := s.unloadAddon(ctx, id) // the first error is returned
	if !unloaded || domain.CodeOf(err) != domain.InvalidArgument {
		return err
	}
	if err = load(); err != nil {
		_, _ = s.unloadAddon(ctx, id) // the first error is returned
	}
	return err
}

// unloadAddon unloads an addon from the server, also when ctx is done. unloaded is false if the
// server did not have the addon, which is not an error.
func (s *server) unloadAddon(ctx context.Context, id string) (unloaded bool, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unloadTimeout)
	defer cancel()
	err = s.call(ctx, http.MethodPost, "/v1/unload_lora_adapter", body{"lora_name": addonName(id)}, nil)
	if domain.CodeOf(err) == domain.InvalidArgument {
		return false, nil
	}
	return err == nil, err
}

// acquire returns the name in the server's API of the addon with the ID, or of the model if id is
// "", and marks the addon as in use. The caller calls release when its request is done. If the
// addon is not loaded, acquire returns ErrAddonNotLoaded.
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

// restore loads the addons into a restarted server, whose URL is url.
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

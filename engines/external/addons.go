package external

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"

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
		err = m.server.call(ctx, http.MethodPost, "/v1/load_lora_adapter",
			body{"lora_name": addonName(id), "lora_path": own}, nil)
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
	err := m.server.call(context.Background(), http.MethodPost, "/v1/unload_lora_adapter",
		body{"lora_name": addonName(id)}, nil)
	go func() {
		one.users.Wait()
		_ = os.RemoveAll(one.dir) // if the removal fails, Close removes the directory with that of the model
	}()
	return err
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

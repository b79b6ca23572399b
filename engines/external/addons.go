package external

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"sync"

	"anneal/engines"
)

// A loader is a model whose server takes adapters while it answers.
type loader struct{ *model }

// An addon is an adapter that the server has. It reads the files again when it
// is started again, so there is a copy of them.
type addon struct {
	dir   string
	users sync.WaitGroup // requests that it answers
}

// addonName is what the server calls an addon.
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
		err = m.server.ask(ctx, http.MethodPost, "/v1/load_lora_adapter", body{"lora_name": addonName(id), "lora_path": own}, nil)
	}
	if err != nil {
		_ = os.RemoveAll(own) // the first error is told
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
	err := m.server.ask(context.Background(), http.MethodPost, "/v1/unload_lora_adapter", body{"lora_name": addonName(id)}, nil)
	go func() {
		one.users.Wait()
		_ = os.RemoveAll(one.dir) // what stays goes with the model's folder
	}()
	return err
}

// named is what the server calls the model that a request asks for; leave must
// be called when it is answered.
func (m *model) named(id string) (name string, leave func(), err error) {
	if id == "" {
		return m.answers, func() {}, nil
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

// restore gives a server that was started again the addons that it had.
func (m *model) restore(ctx context.Context, url string) error {
	m.mu.Lock()
	had := map[string]string{}
	for id, one := range m.addons {
		had[id] = one.dir
	}
	m.mu.Unlock()
	for id, dir := range had {
		if err := m.server.askAt(ctx, url, http.MethodPost, "/v1/load_lora_adapter", body{"lora_name": addonName(id), "lora_path": dir}, nil); err != nil {
			return fmt.Errorf("the addon %s: %w", id, err)
		}
	}
	return nil
}

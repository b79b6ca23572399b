package api

import (
	"context"
	"time"

	"anneal/domain"
)

// Uses keep when API keys were last used, beyond this process. See
// eventlog.Uses.
type Uses interface {
	// Keep records when a resource was used.
	Keep(ctx context.Context, name domain.Name, at time.Time) error
	// Forget drops what is known of a resource.
	Forget(ctx context.Context, name domain.Name) error
}

// useGrain is how exactly it is known when a key was last used: it is noted
// once in that time, so that use costs next to nothing.
const useGrain = time.Minute

// keyUsed notes that the caller's key was used.
func (c *call) keyUsed() {
	key, now := c.caller.key, c.now.Truncate(time.Second)
	if key.Collection() != domain.APIKeys.Collection { // a direct route's
		return
	}
	if last := c.snapshot().Live.KeyUsed(key); now.Sub(last) < useGrain || !c.World.Live().UseKey(key, now) {
		return
	}
	c.aside(func(ctx context.Context) error { return c.Uses.Keep(ctx, key, now) })
}

// keyForgotten drops what is known of a deleted key.
func (c *call) keyForgotten(key domain.Name) {
	c.World.Live().ForgetKey(key)
	c.aside(func(ctx context.Context) error { return c.Uses.Forget(ctx, key) })
}

// aside does what no answer waits for; Drain does.
func (c *call) aside(do func(context.Context) error) {
	if c.Uses == nil {
		return
	}
	c.background.Go(func() {
		ctx, cancel := c.lasting()
		defer cancel()
		if err := do(ctx); err != nil {
			c.Logger.Warn("when a key was last used was not kept", "request", c.id, "error", err)
		}
	})
}

package request

import (
	"context"
	"time"

	"anneal/domain"
)

// Uses store when API keys were last used. See eventlog.Uses.
type Uses interface {
	// Keep records when a resource was used.
	Keep(ctx context.Context, name domain.Name, at time.Time) error
	// Forget drops what is known of a resource.
	Forget(ctx context.Context, name domain.Name) error
}

// useGrain is the resolution of the time at which a key was last used: it is stored at most once in
// that time.
const useGrain = time.Minute

// KeyUsed records that the principal's key was used.
func (c *Call) KeyUsed() {
	key, now := c.Principal.Key, c.Time.Truncate(time.Second)
	if key.Collection() != domain.APIKeys.Collection { // a direct route's
		return
	}
	if last := c.View().Live.KeyUsed(key); now.Sub(last) < useGrain || !c.World.Live().UseKey(key, now) {
		return
	}
	c.aside(func(ctx context.Context) error { return c.Uses.Keep(ctx, key, now) })
}

// KeyForgotten deletes the record of a deleted key.
func (c *Call) KeyForgotten(key domain.Name) {
	c.World.Live().ForgetKey(key)
	c.aside(func(ctx context.Context) error { return c.Uses.Forget(ctx, key) })
}

// aside runs do in the background, until Drain.
func (c *Call) aside(do func(context.Context) error) {
	if c.Uses == nil {
		return
	}
	c.background.Go(func() {
		ctx, cancel := c.Detached()
		defer cancel()
		if err := do(ctx); err != nil {
			c.Logger.Warn("when a key was last used was not kept", "request", c.ID, "error", err)
		}
	})
}

package request

import (
	"context"
	"time"

	"anneal/domain"
)

// Uses store the times at which API keys were last used. eventlog.Uses implements it.
type Uses interface {
	// Keep records that a resource was used at a time.
	Keep(ctx context.Context, name domain.Name, at time.Time) error
	// Forget deletes the time of last use of a resource.
	Forget(ctx context.Context, name domain.Name) error
}

// useGrain is the precision of the time of last use: for each API key, the time is stored at most
// once per useGrain.
const useGrain = time.Minute

// KeyUsed records that the principal's key was used.
func (c *Call) KeyUsed() {
	key, now := c.Principal.Key, c.Time.Truncate(time.Second)
	if key.Collection() != domain.APIKeys.Collection { // keys of direct routes have no time of last use
		return
	}
	if last := c.View().Live.KeyUsed(key); now.Sub(last) < useGrain || !c.World.Live().UseKey(key, now) {
		return
	}
	background(c, func(ctx context.Context) error { return c.Uses.Keep(ctx, key, now) })
}

// KeyForgotten deletes the time of last use of a deleted key.
func (c *Call) KeyForgotten(key domain.Name) {
	c.World.Live().ForgetKey(key)
	background(c, func(ctx context.Context) error { return c.Uses.Forget(ctx, key) })
}

// background runs do in a goroutine, for which Drain waits. It does nothing without Uses.
func background(c *Call, do func(context.Context) error) {
	if c.Uses == nil {
		return
	}
	c.background.Go(func() {
		ctx, cancel := c.Detached()
		defer cancel()
		if err := do(ctx); err != nil {
			c.Logger.Warn("the last use of a key was not recorded", "request", c.ID, "error", err)
		}
	})
}

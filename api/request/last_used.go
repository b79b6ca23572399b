package request

import (
	"context"
	"time"

	"anneal/domain"
)

// LastUsedStore stores when API keys were last used. metering.LastUsed implements it.
type LastUsedStore interface {
	// Keep stores that a resource was used at the given time.
	Keep(ctx context.Context, name domain.Name, useTime time.Time) error
	// Forget deletes the time at which a resource was last used.
	Forget(ctx context.Context, name domain.Name) error
}

// useGrain is the precision of the stored times: the time of last use of an API key is stored at
// most once per useGrain.
const useGrain = time.Minute

// KeyUsed records that the principal's API key was used at c.Time.
func (c *Call) KeyUsed() {
	key, now := c.Principal.Key, c.Time.Truncate(time.Second)
	if key.Collection() != domain.APIKeys.Collection { // keys of direct routes have no time of last use
		return
	}
	if last := c.View().Live.KeyUsed(key); now.Sub(last) < useGrain || !c.World.Live().UseKey(key, now) {
		return
	}
	background(c, func(ctx context.Context) error { return c.LastUsed.Keep(ctx, key, now) })
}

// KeyForgotten deletes the time of last use of a deleted API key.
func (c *Call) KeyForgotten(key domain.Name) {
	c.World.Live().ForgetKey(key)
	background(c, func(ctx context.Context) error { return c.LastUsed.Forget(ctx, key) })
}

// background calls do in a goroutine for which Core.Drain waits. It does nothing if the Core has no
// LastUsedStore.
func background(c *Call, do func(context.Context) error) {
	if c.LastUsed == nil {
		return
	}
	c.background.Go(func() {
		ctx, cancel := c.Detached()
		defer cancel()
		if err := do(ctx); err != nil {
			c.Logger.Warn("the time of last use of an API key was not stored", "request", c.ID, "error", err)
		}
	})
}

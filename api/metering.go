package api

import (
	"anneal/domain"
	"anneal/eventlog/metering"
)

// metered records what the call has used of a deployment. That it cannot be
// recorded is the operator's business, and no reason to withhold an answer.
func (c *call) metered(deployment domain.Name, model string, used metering.Record) {
	if c.server.Meter == nil {
		return
	}
	used.Time, used.Request, used.Account, used.Key, used.Deployment, used.Model = c.Now(), c.ID, c.Principal.Account, c.Principal.Key, deployment, model
	if err := c.server.Meter.Record(used); err != nil {
		c.Logger.Warn("what a request used was not recorded", "request", c.ID, "deployment", deployment, "error", err)
	}
}

// used is what the generation has used. Of choices that broke off it is the
// tokens that were heard.
func (g *generation) used(complete bool) metering.Record {
	g.mu.Lock()
	defer g.mu.Unlock()
	u := metering.Record{Kind: g.form.kind(), Complete: complete, PromptTokens: g.usage.PromptTokens,
		CachedPromptTokens: g.usage.Details.CachedTokens, CompletionTokens: g.usage.CompletionTokens}
	for _, h := range g.all {
		if !h.counted {
			u.CompletionTokens += len(h.Tokens)
		}
	}
	return u
}

// used is what the transcription has used: of one that broke off, what was
// listened to.
func (t *transcription) used(complete bool) metering.Record {
	u := metering.Record{Kind: metering.Transcription, Complete: complete, AudioSeconds: t.seconds}
	if t.q.asked.Options.Translate {
		u.Kind = metering.Translation
	}
	if complete {
		u.AudioSeconds = t.heard.Duration
	}
	return u
}

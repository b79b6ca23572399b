package request

import "anneal/api/wire"

// MaxWarnings bounds the number of headers that name unknown parameters, because some clients
// reject a response with more than 100 headers.
const MaxWarnings = 32

// WarnUnknown adds to the response a warning for each unknown parameter in names, which the
// operation ignores.
func WarnUnknown(c *Call, names []string) {
	for _, name := range names[:min(len(names), MaxWarnings)] {
		c.Warn("unknown parameter %s was ignored", wire.Quote(name))
	}
	if more := len(names) - MaxWarnings; more > 0 {
		c.Warn("%d more unknown parameters were ignored", more)
	}
}

// WarnInert adds the warnings about fields without effect to the response; see inert.Warnings.
func WarnInert(c *Call, warnings []string) {
	for _, warning := range warnings {
		c.Warn("%s", warning)
	}
}

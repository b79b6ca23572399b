package cli

import (
	"context"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// asOfFlag adds the flag --as-of to c, a command that gets or lists resources, and returns c.
func asOfFlag(c *cobra.Command) *cobra.Command {
	c.Flags().String("as-of", "",
		"show the state at a `POSITION` of the log, or at a time such as 2026-03-01T12:00:00Z")
	return c
}

// asOf adds the value of the flag --as-of, if it is given, to the query of a request, as the
// parameter asOf. If query is nil, asOf creates one.
func asOf(c *cobra.Command, query url.Values) url.Values {
	if query == nil {
		query = url.Values{}
	}
	if given, err := c.Flags().GetString("as-of"); err == nil && given != "" {
		query.Set("asOf", given)
	}
	return query
}

// positionAsOf returns the position of the log for a value of asOf, which is a position or a time.
func (c *client) positionAsOf(ctx context.Context, given string) (string, error) {
	res, err := c.request(ctx, http.MethodGet, c.path(), url.Values{"asOf": {given}, "readMask": {"name"}}, "", nil)
	if err != nil {
		return "", err
	}
	return res.Header.Get(positionHeader), res.Body.Close()
}

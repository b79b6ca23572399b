package cli

import (
	"context"
	"net/http"
	"net/url"

	"github.com/spf13/cobra"
)

// asOfFlag adds the flag --as-of to a command that gets or lists resources.
func asOfFlag(c *cobra.Command) *cobra.Command {
	c.Flags().String("as-of", "",
		"show the state at a `POSITION` of the log, or at a time such as 2026-03-01T12:00:00Z")
	return c
}

// asOf sets the query parameter asOf if the command has the flag --as-of. A nil query becomes a new one.
func asOf(c *cobra.Command, query url.Values) url.Values {
	if query == nil {
		query = url.Values{}
	}
	if given, err := c.Flags().GetString("as-of"); err == nil && given != "" {
		query.Set("asOf", given)
	}
	return query
}

// positionHeader is the response header with the position of the log that a response reflects.
const positionHeader = "Anneal-Position"

// positionAsOf returns the position that a value of asOf selects.
func (c *client) positionAsOf(ctx context.Context, given string) (string, error) {
	res, err := c.request(ctx, http.MethodGet, c.path(), url.Values{"asOf": {given}, "readMask": {"name"}}, "", nil)
	if err != nil {
		return "", err
	}
	return res.Header.Get(positionHeader), res.Body.Close()
}

package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"anneal/internal/certs"
	"anneal/internal/datadir"
)

// A client sends requests to one server, with the API key of one account.
type client struct {
	datadir.Context
	warn func(text string) // is called with each warning in a response; nil ignores warnings
	http *http.Client      // HTTP client for the requests; nil means http.DefaultClient
	seen *positions        // positions of the log that responses had; nil neither notes nor sends any
}

// configureTLS sets the HTTP client if the context has certificates. The client trusts the
// certificate authorities in the file ca or, if ca is "", in the context's file.
func (c *client) configureTLS(ca string) error {
	if ca != "" {
		c.CAFile = ca
	}
	if c.CAFile == "" && c.CertFile == "" {
		return nil
	}
	config, err := c.TLSConfig()
	if err != nil {
		return err
	}
	c.http = certs.HTTPClient(config)
	return nil
}

// path returns the URL path of a resource of the account: path("datasets", id).
func (c *client) path(parts ...string) string {
	path := "/v1/accounts/" + c.Account
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// name returns the name of a resource of the collection, which is given as its name or as its ID.
func (c *client) name(collection, idOrName string) string {
	if idOrName == "" || strings.HasPrefix(idOrName, "accounts/") {
		return idOrName
	}
	return "accounts/" + c.Account + "/" + collection + "/" + idOrName
}

// id returns the last part of a resource name, the ID.
func id(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// request sends a request with a body, unless it is nil, and returns the response. A response with
// an error status becomes an error.
func (c *client) request(
	ctx context.Context, method, path string, query url.Values, contentType string, body io.Reader,
) (*http.Response, error) {
	target, own := path, !strings.Contains(path, "://")
	if own {
		target = strings.TrimRight(c.Address, "/") + path
	}
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	credential, err := c.credential(ctx)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+credential)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if f, ok := body.(*form); ok {
		f.announce(req)
	}
	if own {
		c.seen.require(c.Address, req.Header)
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if own {
		c.seen.see(c.Address, res.Header)
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, readError(res)
	}
	if c.warn != nil {
		for _, text := range res.Header.Values("Anneal-Warning") {
			c.warn(text)
		}
	}
	return res, nil
}

// send sends a request, and returns its response, whatever its status.
func (c *client) send(req *http.Request) (*http.Response, error) {
	res, err := cmp.Or(c.http, http.DefaultClient).Do(req)
	switch {
	case err == nil:
		return res, nil
	case req.Context().Err() != nil:
		return nil, req.Context().Err()
	}
	if errors.Is(err, http.ErrSchemeMismatch) {
		return nil, fmt.Errorf("the server at %s speaks HTTP without TLS: give its address as http://%s", req.URL.Host,
			req.URL.Host)
	}
	return nil, fmt.Errorf("the request to %s://%s failed: check that the server runs and can be reached, or select "+
		"another server with --context (%w)", req.URL.Scheme, req.URL.Host, withoutURL(err))
}

// call sends the value in as a JSON body, unless in is nil, and decodes the JSON response into the
// value that out points to, unless out is nil.
func (c *client) call(ctx context.Context, method, path string, query url.Values, in, out any) error {
	var body io.Reader
	contentType := ""
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return err
		}
		body, contentType = bytes.NewReader(data), "application/json"
	}
	res, err := c.request(ctx, method, path, query, contentType, body)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if out == nil {
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	err = json.NewDecoder(res.Body).Decode(out)
	var syntax *json.SyntaxError
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.As(err, &syntax):
		return fmt.Errorf("%s did not respond with JSON, so it is no anneal server: select another server with "+
			"--context",
			c.Address)
	case err != nil:
		return errTruncated(err)
	}
	return nil
}

// list returns all items of a collection.
func (c *client) list(ctx context.Context, path, field string, query url.Values) ([]map[string]any, error) {
	return c.pages(ctx, http.MethodGet, path, field, query, nil)
}

// pageSize is the number of items that are requested with each page of a list.
const pageSize = "200"

// pages requests all pages of a list, and returns their items, which are in the given field of a
// page. If body is not nil, it is sent with every request.
func (c *client) pages(ctx context.Context, method, path, field string, query url.Values, body any) ([]map[string]any,
	error) {
	items := []map[string]any{}
	if query == nil {
		query = url.Values{}
	}
	query.Set("pageSize", pageSize)
	for {
		var page map[string]json.RawMessage
		if err := c.call(ctx, method, path, query, body, &page); err != nil {
			return nil, err
		}
		var part []map[string]any
		if raw, ok := page[field]; ok {
			if err := json.Unmarshal(raw, &part); err != nil {
				return nil, err
			}
		}
		items = append(items, part...)
		var token string
		_ = json.Unmarshal(page["nextPageToken"], &token)
		if token == "" {
			return items, nil
		}
		query.Set("pageToken", token)
	}
}

// openURL requests a signed URL, which needs no API key, and returns the response. A response with
// an error status becomes an error.
func (c *client) openURL(ctx context.Context, link string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, link, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusOK {
		defer res.Body.Close()
		return nil, readError(res)
	}
	return res, nil
}

// stream posts a JSON body, and returns the response while the server is still sending it.
func (c *client) stream(ctx context.Context, path string, body any) (*http.Response, error) {
	data, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	return c.request(ctx, http.MethodPost, path, nil, "application/json", bytes.NewReader(data))
}

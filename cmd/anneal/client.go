package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/spf13/cobra"
)

// A contextFile is what a client needs to reach a server. serve writes it; the
// NATS credentials read the account's events and usage, the operator's those of
// every account, and do nothing else.
type contextFile struct {
	Address      string `json:"address"`
	Account      string `json:"account"`
	APIKey       string `json:"apiKey"`
	NATSURL      string `json:"natsUrl,omitempty"`
	NATSUser     string `json:"natsUser,omitempty"`
	NATSPassword string `json:"natsPassword,omitempty"`
	CAFile       string `json:"caFile,omitempty"`   // authorities to trust beside the system's
	CertFile     string `json:"certFile,omitempty"` // to show to a server that asks for one
	KeyFile      string `json:"keyFile,omitempty"`
}

// contextPath is the context file that a command line means.
func contextPath(c *cobra.Command) string {
	if path, _ := c.Flags().GetString("context"); path != "" {
		return path
	}
	if path := os.Getenv("ANNEAL_CONTEXT"); path != "" {
		return path
	}
	if _, err := os.Stat(localContext); err == nil {
		return localContext
	}
	return cmp.Or(userContext(), localContext)
}

// localContext is what a server writes that is started in this folder.
var localContext = filepath.Join("data", "context.json")

// userContext is the context file in the user's configuration folder, if there
// is one.
func userContext() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "anneal", "context.json")
}

func readContext(path string) (contextFile, error) {
	var file contextFile
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(localContext); err != nil && path == userContext() {
			path = localContext + " or " + path // where it was looked for
		}
		return file, fmt.Errorf("no context file %s: start a server with `anneal serve --data DIR` and give --context DIR/context.json", path)
	}
	if err != nil {
		return file, err
	}
	if err := json.Unmarshal(data, &file); err != nil || file.Address == "" || file.APIKey == "" {
		return file, fmt.Errorf("%s is not a context file: it must hold address, account and apiKey", path)
	}
	return file, nil
}

// A client asks one server on behalf of one account.
type client struct {
	contextFile
	warn func(text string) // is told what the server warns of; nil for nobody
	http *http.Client      // nil is the default one
}

// secured is the context with --ca, and a client that trusts what it names.
func (c *client) secured(ca string) error {
	if ca != "" {
		c.CAFile = ca
	}
	if c.CAFile == "" && c.CertFile == "" {
		return nil
	}
	config, err := c.tlsConfig()
	if err != nil {
		return fmt.Errorf("%w: give the server's authorities with --ca FILE, or as caFile in the context file", err)
	}
	c.http = httpClient(config)
	return nil
}

func (f contextFile) tlsConfig() (*tls.Config, error) {
	pair, err := openKeyPair("certFile", f.CertFile, "keyFile", f.KeyFile)
	if err != nil {
		return nil, err
	}
	return clientTLS(pair, f.CAFile)
}

// natsOptions are what the events are read with.
func (f contextFile) natsOptions() ([]nats.Option, error) {
	options := []nats.Option{nats.UserInfo(f.NATSUser, f.NATSPassword), nats.Timeout(5 * time.Second)}
	if f.CAFile == "" && f.CertFile == "" || !strings.HasPrefix(f.NATSURL, "tls://") {
		return options, nil
	}
	config, err := f.tlsConfig()
	return append(options, nats.Secure(config)), err
}

func newClient(c *cobra.Command) (*client, error) {
	file, err := readContext(contextPath(c))
	if err != nil {
		return nil, err
	}
	return clientOf(c, file)
}

// clientOf is a client that prints warnings in the words of the command.
func clientOf(c *cobra.Command, file contextFile) (*client, error) {
	ca, _ := c.Flags().GetString("ca")
	made := &client{contextFile: file, warn: func(text string) { fmt.Fprintln(c.ErrOrStderr(), "anneal: warning:", inCommands(c, text)) }}
	return made, made.secured(ca)
}

// path is the URL path of a resource of the account: path("datasets", id).
func (c *client) path(parts ...string) string {
	path := "/v1/accounts/" + c.Account
	for _, p := range parts {
		path += "/" + p
	}
	return path
}

// name is the full resource name of what may be given as its last part.
func (c *client) name(collection, idOrName string) string {
	if idOrName == "" || strings.HasPrefix(idOrName, "accounts/") {
		return idOrName
	}
	return "accounts/" + c.Account + "/" + collection + "/" + idOrName
}

// id is the last part of a resource name.
func id(name string) string { return name[strings.LastIndexByte(name, '/')+1:] }

// An apiError is an answer that says no.
type apiError struct {
	HTTP    int
	Message string
}

func (e *apiError) Error() string { return e.Message }

func (c *client) request(ctx context.Context, method, path string, query url.Values, contentType string, body io.Reader) (*http.Response, error) {
	target := path
	if !strings.Contains(path, "://") {
		target = strings.TrimRight(c.Address, "/") + path
	}
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.APIKey)
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	if f, ok := body.(*form); ok {
		f.announce(req)
	}
	res, err := c.send(req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode >= 300 {
		defer res.Body.Close()
		return nil, refusal(res)
	}
	if c.warn != nil {
		for _, text := range res.Header.Values("Anneal-Warning") {
			c.warn(text)
		}
	}
	return res, nil
}

// send sends a request, and says in words that nobody answers.
func (c *client) send(req *http.Request) (*http.Response, error) {
	res, err := cmp.Or(c.http, http.DefaultClient).Do(req)
	switch {
	case err == nil:
		return res, nil
	case req.Context().Err() != nil:
		return nil, req.Context().Err()
	}
	return nil, fmt.Errorf("%s://%s does not answer: start its server, or name another with --context (%w)", req.URL.Scheme, req.URL.Host, withoutURL(err))
}

// withoutURL is the error of a request without its URL, which may be long and
// carry a signature.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// shownViolations is how many faults of one request are printed.
const shownViolations = 20

func refusal(res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var body struct {
		Message string `json:"message"`
		Details []struct {
			Violations []struct {
				Field       string `json:"field"`
				Description string `json:"description"`
			} `json:"fieldViolations"`
		} `json:"details"`
		Error struct {
			Message string `json:"message"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &body)
	message := body.Message + body.Error.Message
	for _, d := range body.Details {
		if len(d.Violations) < 2 {
			continue // the message says it all
		}
		message = fmt.Sprintf("%d things are wrong:", len(d.Violations))
		for _, v := range d.Violations[:min(len(d.Violations), shownViolations)] {
			message += "\n  " + v.Field + ": " + v.Description
		}
		if more := len(d.Violations) - shownViolations; more > 0 {
			message += fmt.Sprintf("\n  and %d more", more)
		}
	}
	if message == "" {
		message = fmt.Sprintf("%s answered %s, as no anneal server does: name another with --context", res.Request.URL.Host, res.Status)
	}
	return &apiError{res.StatusCode, message}
}

// call sends a JSON body, or none, and reads a JSON answer into out, if any.
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
		return fmt.Errorf("%s answered something else than JSON, as no anneal server does: name another with --context", c.Address)
	case err != nil:
		return brokeOff(err)
	}
	return nil
}

func brokeOff(err error) error { return fmt.Errorf("the answer broke off: try again (%w)", err) }

// list answers every item of a collection, page after page.
func (c *client) list(ctx context.Context, path, field string, query url.Values) ([]map[string]any, error) {
	return c.pages(ctx, http.MethodGet, path, field, query, nil)
}

// pages answers every item of a list, which the body asks for, if any.
func (c *client) pages(ctx context.Context, method, path, field string, query url.Values, body any) ([]map[string]any, error) {
	items := []map[string]any{}
	if query == nil {
		query = url.Values{}
	}
	query.Set("pageSize", "200")
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

// serverSent yields the data of each server-sent event of an answer, which ends
// with [DONE]; an answer that ends before it broke off.
func serverSent(r io.Reader, each func(data []byte) error) error {
	done := false
	err := sentFields(r, func(field string, value []byte) error {
		if field != "data" || done {
			return nil
		}
		if done = string(value) == "[DONE]"; done {
			return nil
		}
		return each(value)
	})
	var read readError
	switch {
	case errors.As(err, &read):
		return brokeOff(read.error)
	case err == nil && !done:
		return brokeOff(io.ErrUnexpectedEOF)
	}
	return err
}

// A readError is one of the connection that an answer comes over.
type readError struct{ error }

func (e readError) Unwrap() error { return e.error }

// sentFields yields the fields of server-sent events until the stream ends,
// and a field without a name behind the last one of each event.
func sentFields(r io.Reader, each func(field string, value []byte) error) error {
	scanner := bufio.NewScanner(r)
	scanner.Buffer(nil, 16<<20)
	for scanner.Scan() && scanner.Err() == nil { // a line that is cut off says nothing
		name, value, _ := bytes.Cut(scanner.Bytes(), []byte(":"))
		if len(name) == 0 && len(scanner.Bytes()) > 0 {
			continue // a comment
		}
		if err := each(string(name), bytes.TrimSpace(value)); err != nil {
			return err
		}
	}
	if err := scanner.Err(); err != nil {
		return readError{err}
	}
	return nil
}

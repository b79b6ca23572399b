package datadir

import (
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/nats-io/nats.go"

	"anneal/internal/certs"
)

// Context is a context file: the settings with which a client connects to a server. A server or
// `anneal login` writes the file. A client takes a missing account from the API key. The NATS
// credentials in the file only permit reading events and usage records: those of the account or, in
// the operator's file, those of all accounts.
type Context struct {
	Address      string `json:"address"`
	Account      string `json:"account"`
	APIKey       string `json:"apiKey"`
	NATSURL      string `json:"natsUrl,omitempty"`
	NATSUser     string `json:"natsUser,omitempty"`
	NATSPassword string `json:"natsPassword,omitempty"`
	CAFile       string `json:"caFile,omitempty"`   // CA certificates to trust in addition to the system's
	CertFile     string `json:"certFile,omitempty"` // client certificate for a server that requires one
	KeyFile      string `json:"keyFile,omitempty"`
}

// LocalContext is the context file of a server started in the working directory.
var LocalContext = filepath.Join("data", "context.json")

// UserContext returns the context file in the user's configuration directory; "" if there is no
// such directory.
func UserContext() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "anneal", "context.json")
}

// ReadContext reads a context file.
func ReadContext(path string) (Context, error) {
	var file Context
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(LocalContext); err != nil && path == UserContext() {
			path = LocalContext + " or " + path
		}
		return file, fmt.Errorf("no context file %s: start a server with `anneal serve --data DIR` "+
			"and give --context DIR/context.json, or log in to a server with `anneal login URL`", path)
	}
	if err != nil {
		return file, err
	}
	if err := json.Unmarshal(data, &file); err != nil || file.Address == "" || file.APIKey == "" {
		return file, fmt.Errorf("%s is not a context file: it must contain address and apiKey", path)
	}
	return file, nil
}

// TLSConfig returns the TLS configuration of a client with this context.
func (c Context) TLSConfig() (*tls.Config, error) {
	pair, err := certs.Open("certFile", c.CertFile, "keyFile", c.KeyFile)
	if err != nil {
		return nil, err
	}
	config, err := certs.ClientConfig(pair, c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w; set the certificate authorities of the server with --ca FILE, or as caFile in the "+
			"context file", err)
	}
	return config, nil
}

// NATSOptions returns the options of a NATS connection that reads events.
func (c Context) NATSOptions() ([]nats.Option, error) {
	options := []nats.Option{nats.UserInfo(c.NATSUser, c.NATSPassword)}
	if c.CAFile == "" && c.CertFile == "" || !strings.HasPrefix(c.NATSURL, "tls://") {
		return options, nil
	}
	config, err := c.TLSConfig()
	return append(options, nats.Secure(config)), err
}

// KeepCertificates copies the certificates that an operator added to an existing context file.
func (c *Context) KeepCertificates(existing Context) {
	c.CertFile, c.KeyFile = existing.CertFile, existing.KeyFile
	if _, err := os.Stat(existing.CAFile); err == nil && existing.CAFile != "" {
		c.CAFile = existing.CAFile
	}
}

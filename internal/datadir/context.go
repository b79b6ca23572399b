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

// A Context is the content of a context file: with which server and which API key a client works. A
// server or `anneal login` writes the file. Without an account in the file, the client takes the
// account in the API key. The NATS credentials in the file can only read events and usage records:
// those of the account or, in the operator's file, those of all accounts.
type Context struct {
	Address      string `json:"address"`
	Account      string `json:"account"`
	APIKey       string `json:"apiKey"`
	Login        *Login `json:"login,omitempty"` // of a user at an identity provider, instead of an API key
	NATSURL      string `json:"natsUrl,omitempty"`
	NATSUser     string `json:"natsUser,omitempty"`
	NATSPassword string `json:"natsPassword,omitempty"`
	// CAFile is the file with CA certificates to trust in addition to the system's.
	CAFile string `json:"caFile,omitempty"`
	// CertFile is the file with the client certificate for a server that requires one.
	CertFile string `json:"certFile,omitempty"`
	KeyFile  string `json:"keyFile,omitempty"`
	// Path is the path of the file, in which a client stores a renewed Login; "" if there is none.
	Path string `json:"-"`
}

// A Login is what a client knows after a user has logged in at an identity provider.
type Login struct {
	Issuer       string `json:"issuer"`
	ClientID     string `json:"clientId"`
	IDToken      string `json:"idToken"`
	RefreshToken string `json:"refreshToken,omitempty"`
}

// LocalContext is the path of the context file of a server that was started in the working
// directory.
var LocalContext = filepath.Join("data", "context.json")

// UserContext returns the path of the context file in the user's configuration directory; "" if the
// user has no such directory.
func UserContext() string {
	dir, err := os.UserConfigDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "anneal", "context.json")
}

// ReadContext reads the context file at path.
func ReadContext(path string) (Context, error) {
	var file Context
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Stat(LocalContext); err != nil && path == UserContext() {
			path = LocalContext + " or " + path
		}
		return file, fmt.Errorf("the context file %s does not exist: start a server with `anneal serve --data DIR` "+
			"and use --context DIR/context.json, or log in to a server with `anneal login URL`", path)
	}
	if err != nil {
		return file, err
	}
	if err := json.Unmarshal(data, &file); err != nil || file.Address == "" ||
		file.APIKey == "" && file.Login == nil {
		return file, fmt.Errorf("%s is not a context file: it must contain address and apiKey", path)
	}
	file.Path = path
	return file, nil
}

// TLSConfig returns the TLS configuration for clients of the server in this context.
func (c Context) TLSConfig() (*tls.Config, error) {
	pair, err := certs.Open("certFile", c.CertFile, "keyFile", c.KeyFile)
	if err != nil {
		return nil, err
	}
	config, err := certs.ClientConfig(pair, c.CAFile)
	if err != nil {
		return nil, fmt.Errorf("%w: set the file of the server's certificate authorities with --ca FILE, or as "+
			"caFile in the context file", err)
	}
	return config, nil
}

// NATSOptions returns the options for a NATS connection that reads events with the credentials in
// this context.
func (c Context) NATSOptions() ([]nats.Option, error) {
	options := []nats.Option{nats.UserInfo(c.NATSUser, c.NATSPassword)}
	if c.CAFile == "" && c.CertFile == "" || !strings.HasPrefix(c.NATSURL, "tls://") {
		return options, nil
	}
	config, err := c.TLSConfig()
	return append(options, nats.Secure(config)), err
}

// KeepCertificates copies the certificate files from an existing context file, to which an operator
// has added them.
func (c *Context) KeepCertificates(existing Context) {
	c.CertFile, c.KeyFile = existing.CertFile, existing.KeyFile
	if _, err := os.Stat(existing.CAFile); err == nil && existing.CAFile != "" {
		c.CAFile = existing.CAFile
	}
}

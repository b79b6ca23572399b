package server

import (
	"cmp"
	"crypto/tls"
	"log/slog"
	"net"

	"github.com/spf13/pflag"

	"anneal/internal/certs"
	"anneal/internal/usage"
)

// TLSFlags are the flags that name the certificates of a server.
type TLSFlags struct {
	cert, key, clientCA string // files for HTTP and, without natsCert, for the embedded NATS server
	// natsCert are the files for the embedded NATS server or, with --nats-url, for connections to
	// the NATS cluster.
	natsCert, natsKey, natsCA string
}

func (t *TLSFlags) add(f *pflag.FlagSet) {
	f.StringVar(&t.cert, "tls-cert", "",
		"PEM certificate chain for HTTPS and for the embedded NATS server; reloaded when the file changes")
	f.StringVar(&t.key, "tls-key", "", "private key of --tls-cert")
	f.StringVar(&t.clientCA, "tls-client-ca", "",
		"require clients, over HTTP and NATS, to present certificates signed by a CA in this PEM file")
	t.AddCluster(f)
}

// AddCluster adds the flags for TLS of NATS.
func (t *TLSFlags) AddCluster(f *pflag.FlagSet) {
	f.StringVar(&t.natsCert, "nats-cert", "",
		"PEM certificate for NATS: of the embedded NATS server (default: --tls-cert), or, with --nats-url, "+
			"of this server as a client of the NATS cluster")
	f.StringVar(&t.natsKey, "nats-key", "", "private key of --nats-cert")
	f.StringVar(&t.natsCA, "nats-ca", "",
		"PEM file of certificate authorities to trust for the NATS cluster of --nats-url, in addition to the system's")
}

// serverCerts are the loaded certificates. Those that no flag configures are nil.
type serverCerts struct {
	pair       *certs.KeyPair // certificate for HTTP
	http, nats *tls.Config    // TLS configurations of the HTTP listener and of the embedded NATS server
	cluster    *tls.Config    // TLS configuration for connections to the NATS cluster
}

// LoadCluster returns the TLS configuration for connections to a NATS cluster; nil if no flag
// requires one. cluster reports whether the log is in a NATS cluster (--nats-url).
func (t *TLSFlags) LoadCluster(cluster bool) (*tls.Config, error) {
	loaded, err := t.load(cluster)
	return loaded.cluster, err
}

// load loads the certificates that the flags name.
func (t *TLSFlags) load(cluster bool) (loaded serverCerts, err error) {
	if loaded.pair, err = certs.Open("--tls-cert", t.cert, "--tls-key", t.key); err != nil {
		return loaded, err
	}
	natsPair, err := certs.Open("--nats-cert", t.natsCert, "--nats-key", t.natsKey)
	if err != nil {
		return loaded, err
	}
	switch {
	case t.clientCA != "" && loaded.pair == nil:
		return loaded, usage.Errorf("--tls-client-ca requires --tls-cert and --tls-key")
	case t.natsCA != "" && !cluster:
		return loaded, usage.Errorf("--nats-ca requires --nats-url: for the embedded NATS server use --tls-client-ca")
	}
	if loaded.pair != nil {
		if loaded.http, err = certs.ServerConfig(loaded.pair, t.clientCA); err != nil {
			return loaded, err
		}
	}
	if cluster {
		if natsPair != nil || t.natsCA != "" {
			loaded.cluster, err = certs.ClientConfig(natsPair, t.natsCA)
		}
		return loaded, err
	}
	if pair := cmp.Or(natsPair, loaded.pair); pair != nil {
		loaded.nats, err = certs.ServerConfig(pair, t.clientCA)
	}
	return loaded, err
}

// warnWithoutTLS logs a warning if the listener at address has no TLS (plain is true) and other
// machines can reach it. what names the listener.
func warnWithoutTLS(logger *slog.Logger, what, flag, address string, plain bool) {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); !plain || host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	logger.Warn(what+" is open to other machines WITHOUT TLS: keys, prompts and data can be read in transit; "+
		"give --tls-cert and --tls-key", flag, address)
}

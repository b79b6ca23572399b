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

// TLSFlags name the certificates of a server.
type TLSFlags struct {
	cert, key, clientCA       string // of HTTP, and of the embedded NATS server unless it has its own
	natsCert, natsKey, natsCA string // of the embedded NATS server; with --nats-url, of its client
}

func (t *TLSFlags) add(f *pflag.FlagSet) {
	f.StringVar(&t.cert, "tls-cert", "", "PEM certificate chain for HTTPS and for the embedded NATS server; reloaded when it changes")
	f.StringVar(&t.key, "tls-key", "", "private key of --tls-cert")
	f.StringVar(&t.clientCA, "tls-client-ca", "", "require clients, over HTTP and NATS, to present certificates signed by these authorities")
	t.AddCluster(f)
}

// AddCluster adds the flags for NATS.
func (t *TLSFlags) AddCluster(f *pflag.FlagSet) {
	f.StringVar(&t.natsCert, "nats-cert", "", "certificate for NATS: of the embedded server, or with --nats-url of the client of the cluster")
	f.StringVar(&t.natsKey, "nats-key", "", "private key of --nats-cert")
	f.StringVar(&t.natsCA, "nats-ca", "", "with --nats-url, authorities to trust in addition to the system's")
}

// serverCerts are the loaded certificates; those that are not configured are nil.
type serverCerts struct {
	pair       *certs.KeyPair // of HTTP
	http, nats *tls.Config    // of the listeners
	cluster    *tls.Config    // of the client of the NATS cluster
}

// LoadCluster returns the TLS configuration of a client of a NATS cluster; nil without flags.
func (t *TLSFlags) LoadCluster(cluster bool) (*tls.Config, error) {
	loaded, err := t.load(cluster)
	return loaded.cluster, err
}

// load reads the certificates.
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

// warnWithoutTLS warns that traffic to an address that other machines reach is not encrypted.
func warnWithoutTLS(logger *slog.Logger, what, flag, address string, plain bool) {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); !plain || host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	logger.Warn(what+" is open to other machines WITHOUT TLS: keys, prompts and data can be read in transit; "+
		"give --tls-cert and --tls-key", flag, address)
}

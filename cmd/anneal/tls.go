package main

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// A keyPair is a certificate and its key on disk. It is read again when one of
// the files has changed, so that it can be renewed without a restart.
type keyPair struct {
	certFile, keyFile string

	mu     sync.Mutex
	looked time.Time
	stamp  [2]time.Time
	pair   *tls.Certificate
}

const lookAgain = time.Second // between two looks at the files' times

// current is the pair, or why it cannot be read. A pair that was read before
// stays when its files are being replaced and do not fit yet.
func (k *keyPair) current() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.pair != nil && now.Sub(k.looked) < lookAgain {
		return k.pair, nil
	}
	k.looked = now
	var stamp [2]time.Time
	for i, path := range []string{k.certFile, k.keyFile} {
		if info, err := os.Stat(path); err == nil {
			stamp[i] = info.ModTime()
		}
	}
	if k.pair != nil && stamp == k.stamp {
		return k.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	switch {
	case err == nil:
		k.pair, k.stamp = &pair, stamp
	case k.pair == nil:
		return nil, fmt.Errorf("the certificate %s and the key %s cannot be used: %w", k.certFile, k.keyFile, err)
	}
	return k.pair, nil
}

func (k *keyPair) forServer(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.current() }

func (k *keyPair) forClient(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return k.current()
}

// openKeyPair is the pair of two flags; nil when neither is given.
func openKeyPair(certFlag, certFile, keyFlag, keyFile string) (*keyPair, error) {
	switch {
	case certFile == "" && keyFile == "":
		return nil, nil
	case certFile == "" || keyFile == "":
		return nil, usageError{fmt.Errorf("%s and %s belong together: give both", certFlag, keyFlag)}
	}
	pair := &keyPair{certFile: certFile, keyFile: keyFile}
	_, err := pair.current()
	return pair, err
}

// authorities are the certificates of PEM files, beside the system's where
// beside is set.
func authorities(beside bool, files ...string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if beside {
		if system, err := x509.SystemCertPool(); err == nil {
			pool = system
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("the certificates to trust: %w", err)
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate in PEM", file)
		}
	}
	return pool, nil
}

// serverTLS is how a server answers with a pair; clientCA is whose clients it
// lets in, "" for everybody.
func serverTLS(pair *keyPair, clientCA string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.forServer, NextProtos: []string{"http/1.1"}}
	if clientCA != "" {
		pool, err := authorities(false, clientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// clientTLS is how others are connected to: with the system's authorities and
// those of some files, and with a certificate where pair is not nil.
func clientTLS(pair *keyPair, caFiles ...string) (*tls.Config, error) {
	files := slices.DeleteFunc(caFiles, func(file string) bool { return file == "" })
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if pair != nil {
		config.GetClientCertificate = pair.forClient
	}
	if len(files) == 0 {
		return config, nil
	}
	var err error
	config.RootCAs, err = authorities(true, files...)
	return config, err
}

// httpClient is a client with such a configuration.
func httpClient(config *tls.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	return &http.Client{Transport: transport}
}

// trusting lets a configuration trust one server more: that with our own
// certificate, which is this process, under whatever name it is reached.
func trusting(own *keyPair, config *tls.Config) *tls.Config {
	config = config.Clone()
	config.InsecureSkipVerify = true // VerifyConnection does it
	if config.GetClientCertificate == nil {
		config.GetClientCertificate = own.forClient
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		pair, err := own.current()
		if err != nil {
			return err
		}
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server has no certificate")
		}
		leaf := state.PeerCertificates[0]
		if slices.Equal(leaf.Raw, pair.Certificate[0]) {
			return nil
		}
		chain := x509.NewCertPool()
		for _, one := range state.PeerCertificates[1:] {
			chain.AddCert(one)
		}
		_, err = leaf.Verify(x509.VerifyOptions{DNSName: state.ServerName, Intermediates: chain, Roots: config.RootCAs})
		return err
	}
	return config
}

// tlsFlags are the certificates of a server.
type tlsFlags struct {
	cert, key, clientCA       string // of HTTP, and of the embedded NATS server unless it has its own
	natsCert, natsKey, natsCA string // embedded: its own pair; with --nats-url: the client's pair
}

func (t *tlsFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.cert, "tls-cert", "", "certificate in PEM, with its chain, for HTTPS and for the embedded NATS server; read again when it changes")
	f.StringVar(&t.key, "tls-key", "", "its private key")
	f.StringVar(&t.clientCA, "tls-client-ca", "", "let only clients in, over HTTP and NATS, whose certificates these authorities signed")
	t.addCluster(c)
}

// addCluster adds the flags for NATS.
func (t *tlsFlags) addCluster(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&t.natsCert, "nats-cert", "", "another certificate for NATS: that of the embedded server, or with --nats-url the one to show to the cluster")
	f.StringVar(&t.natsKey, "nats-key", "", "its private key")
	f.StringVar(&t.natsCA, "nats-ca", "", "with --nats-url, authorities to trust beside the system's")
}

// A serverCerts is what the flags name. What is nil is not used.
type serverCerts struct {
	pair       *keyPair    // of HTTP
	http, nats *tls.Config // to answer with
	cluster    *tls.Config // to connect to the NATS cluster with
}

// open reads what the flags name.
func (t *tlsFlags) open(cluster bool) (certs serverCerts, err error) {
	if certs.pair, err = openKeyPair("--tls-cert", t.cert, "--tls-key", t.key); err != nil {
		return certs, err
	}
	natsPair, err := openKeyPair("--nats-cert", t.natsCert, "--nats-key", t.natsKey)
	if err != nil {
		return certs, err
	}
	switch {
	case t.clientCA != "" && certs.pair == nil:
		return certs, usageError{errors.New("--tls-client-ca needs --tls-cert and --tls-key")}
	case t.natsCA != "" && !cluster:
		return certs, usageError{errors.New("--nats-ca is for --nats-url: the embedded NATS server takes --tls-client-ca")}
	}
	if certs.pair != nil {
		if certs.http, err = serverTLS(certs.pair, t.clientCA); err != nil {
			return certs, err
		}
	}
	if cluster {
		if natsPair != nil || t.natsCA != "" {
			certs.cluster, err = clientTLS(natsPair, t.natsCA)
		}
		return certs, err
	}
	if pair := cmp.Or(natsPair, certs.pair); pair != nil {
		certs.nats, err = serverTLS(pair, t.clientCA)
	}
	return certs, err
}

// warnOfPlain tells that what is sent to an address can be read on its way.
func warnOfPlain(logger *slog.Logger, what, flag, address string, plain bool) {
	host, _, _ := net.SplitHostPort(address)
	if ip := net.ParseIP(host); !plain || host == "localhost" || ip != nil && ip.IsLoopback() {
		return
	}
	logger.Warn(what+" is open to other machines WITHOUT TLS: keys, prompts and data can be read on their way; give --tls-cert and --tls-key", flag, address)
}

// keepCertificates keeps what an operator has written into a context file by
// hand, over a start of the server.
func (f *contextFile) keepCertificates(existing contextFile) {
	f.CertFile, f.KeyFile = existing.CertFile, existing.KeyFile
	if _, err := os.Stat(existing.CAFile); err == nil && existing.CAFile != "" {
		f.CAFile = existing.CAFile
	}
}

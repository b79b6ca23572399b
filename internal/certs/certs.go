// Package certs loads TLS certificates from files and builds TLS configurations from them.
package certs

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"slices"
	"sync"
	"time"

	"anneal/internal/usage"
)

// A KeyPair is a certificate and its private key, which are in two files. Current loads them again
// when one of the files has changed, so that a certificate can be renewed without a restart.
type KeyPair struct {
	certFile, keyFile string

	mu       sync.Mutex
	checked  time.Time
	modTimes [2]time.Time
	pair     *tls.Certificate
}

// checkInterval is the minimum time between two checks of the files' modification times.
const checkInterval = time.Second

// Current returns the certificate in the files. If they cannot be loaded, for example because only
// one of them has been replaced yet, it returns the certificate that it loaded last.
func (k *KeyPair) Current() (*tls.Certificate, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := time.Now()
	if k.pair != nil && now.Sub(k.checked) < checkInterval {
		return k.pair, nil
	}
	k.checked = now
	var modTimes [2]time.Time
	for i, path := range []string{k.certFile, k.keyFile} {
		if info, err := os.Stat(path); err == nil {
			modTimes[i] = info.ModTime()
		}
	}
	if k.pair != nil && modTimes == k.modTimes {
		return k.pair, nil
	}
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	switch {
	case err == nil:
		k.pair, k.modTimes = &pair, modTimes
	case k.pair == nil:
		return nil, fmt.Errorf("load certificate %s with key %s: %w", k.certFile, k.keyFile, err)
	}
	return k.pair, nil
}

func (k *KeyPair) getCertificate(*tls.ClientHelloInfo) (*tls.Certificate, error) { return k.Current() }

func (k *KeyPair) getClientCertificate(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
	return k.Current()
}

// Open loads the certificate in certFile and its private key in keyFile. It returns nil if both
// names are "". certSetting and keySetting are the flags or fields with the file names, for error
// messages.
func Open(certSetting, certFile, keySetting, keyFile string) (*KeyPair, error) {
	switch {
	case certFile == "" && keyFile == "":
		return nil, nil
	case certFile == "" || keyFile == "":
		return nil, usage.Errorf("%s and %s require each other: give both or neither", certSetting, keySetting)
	}
	pair := &KeyPair{certFile: certFile, keyFile: keyFile}
	_, err := pair.Current()
	return pair, err
}

// loadPool returns a pool with the CA certificates in PEM files and, if system is true, the
// system's.
func loadPool(system bool, files ...string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	if system {
		if roots, err := x509.SystemCertPool(); err == nil {
			pool = roots
		}
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("load trusted certificates: %w", err)
		}
		if !pool.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("load trusted certificates: %s contains no certificate in PEM format", file)
		}
	}
	return pool, nil
}

// ServerConfig returns the TLS configuration of a server with the certificate pair. If clientCA is
// not "", it is a file of CA certificates, and a client must present a certificate that one of
// these CAs signed.
func ServerConfig(pair *KeyPair, clientCA string) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, GetCertificate: pair.getCertificate,
		NextProtos: []string{"http/1.1"}}
	if clientCA != "" {
		pool, err := loadPool(false, clientCA)
		if err != nil {
			return nil, err
		}
		config.ClientCAs, config.ClientAuth = pool, tls.RequireAndVerifyClientCert
	}
	return config, nil
}

// ClientConfig returns the TLS configuration of a client. The client trusts the system's CAs and
// those in caFiles, whose empty names are ignored, and presents pair as its certificate unless pair
// is nil.
func ClientConfig(pair *KeyPair, caFiles ...string) (*tls.Config, error) {
	files := slices.DeleteFunc(caFiles, func(file string) bool { return file == "" })
	config := &tls.Config{MinVersion: tls.VersionTLS12}
	if pair != nil {
		config.GetClientCertificate = pair.getClientCertificate
	}
	if len(files) == 0 {
		return config, nil
	}
	var err error
	config.RootCAs, err = loadPool(true, files...)
	return config, err
}

// HTTPClient returns a client with the default transport and a TLS configuration.
func HTTPClient(config *tls.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	return &http.Client{Transport: transport}
}

// Trusting returns a copy of a client's configuration that also trusts the certificate own, which
// this process uses as a server, under any host name. If config has no client certificate, the
// client presents own.
func Trusting(own *KeyPair, config *tls.Config) *tls.Config {
	config = config.Clone()
	config.InsecureSkipVerify = true // VerifyConnection below verifies the server's certificate
	if config.GetClientCertificate == nil {
		config.GetClientCertificate = own.getClientCertificate
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		pair, err := own.Current()
		if err != nil {
			return err
		}
		if len(state.PeerCertificates) == 0 {
			return errors.New("verify the server: it presents no certificate")
		}
		leaf := state.PeerCertificates[0]
		if slices.Equal(leaf.Raw, pair.Certificate[0]) {
			return nil
		}
		chain := x509.NewCertPool()
		for _, certificate := range state.PeerCertificates[1:] {
			chain.AddCert(certificate)
		}
		_, err = leaf.Verify(x509.VerifyOptions{DNSName: state.ServerName, Intermediates: chain, Roots: config.RootCAs})
		return err
	}
	return config
}

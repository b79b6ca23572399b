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

// KeyPair is a certificate with its private key in files. It is reloaded when one of the files
// changes, so that a certificate is renewed without a restart.
type KeyPair struct {
	certFile, keyFile string

	mu       sync.Mutex
	checked  time.Time
	modTimes [2]time.Time
	pair     *tls.Certificate
}

// checkInterval is the interval at which the modification times of the files are checked.
const checkInterval = time.Second

// Current returns the certificate. While the files are being replaced and do not match, it returns
// the certificate that was loaded before.
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

// Open loads the pair in certFile and keyFile, whose settings are named certSetting and keySetting
// in error messages. It returns nil when both files are "".
func Open(certSetting, certFile, keySetting, keyFile string) (*KeyPair, error) {
	switch {
	case certFile == "" && keyFile == "":
		return nil, nil
	case certFile == "" || keyFile == "":
		return nil, usage.Errorf("%s and %s must be given together", certSetting, keySetting)
	}
	pair := &KeyPair{certFile: certFile, keyFile: keyFile}
	_, err := pair.Current()
	return pair, err
}

// loadPool returns the certificates of PEM files, in addition to the system's if system is true.
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
			return nil, fmt.Errorf("load trusted certificates: %s contains no PEM certificate", file)
		}
	}
	return pool, nil
}

// ServerConfig returns the configuration of a server. If clientCA is not "", it is a file with
// CA certificates, and a client must present a certificate that one of these CAs signed.
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

// ClientConfig returns the configuration of a client, which trusts the system's authorities and
// those in caFiles, and presents pair unless it is nil. Empty names in caFiles are ignored.
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

// HTTPClient returns an HTTP client with a TLS configuration.
func HTTPClient(config *tls.Config) *http.Client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = config
	return &http.Client{Transport: transport}
}

// Trusting returns a client configuration that also trusts own, the certificate of this process,
// under any host name. If config has no client certificate, the client presents own.
func Trusting(own *KeyPair, config *tls.Config) *tls.Config {
	config = config.Clone()
	config.InsecureSkipVerify = true // VerifyConnection verifies instead
	if config.GetClientCertificate == nil {
		config.GetClientCertificate = own.getClientCertificate
	}
	config.VerifyConnection = func(state tls.ConnectionState) error {
		pair, err := own.Current()
		if err != nil {
			return err
		}
		if len(state.PeerCertificates) == 0 {
			return errors.New("the server presents no certificate")
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

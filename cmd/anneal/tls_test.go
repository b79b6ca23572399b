package main_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"math/big"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/internal/testutil"
)

// An authority signs certificates for this machine.
type authority struct {
	*testing.T
	dir    string
	key    *ecdsa.PrivateKey
	cert   *x509.Certificate
	serial int64
}

func newAuthority(t *testing.T) *authority {
	a := &authority{T: t, dir: t.TempDir()}
	a.key, a.cert = a.write("ca", nil)
	return a
}

func (a *authority) path(name string) string { return filepath.Join(a.dir, name) }

// write creates the files NAME.pem and NAME.key, and returns the key and the certificate in them.
func (a *authority) write(name string, more func(*x509.Certificate)) (*ecdsa.PrivateKey, *x509.Certificate) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(a, err)
	a.serial++
	template := &x509.Certificate{SerialNumber: big.NewInt(a.serial), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}
	parent, signer := a.cert, a.key
	if parent == nil {
		template.IsCA, template.BasicConstraintsValid, template.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, signer = template, key
	}
	if more != nil {
		more(template)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	require.NoError(a, err)
	cert, err := x509.ParseCertificate(der)
	require.NoError(a, err)
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	require.NoError(a, err)
	require.NoError(a, os.WriteFile(a.path(name+".key"),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), 0o600))
	require.NoError(a, os.WriteFile(a.path(name+".pem"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		0o600))
	return key, cert
}

// TestTLS checks that with a private authority all connections use TLS, and that clients without a
// certificate of the authority are rejected. The test covers the command line, a worker that
// trains, the events, and a certificate that is renewed.
func TestTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.write("server", nil)
	a.write("client", nil)
	f := newFleet(t, "--tls-cert", a.path("server.pem"), "--tls-key", a.path("server.key"), "--tls-client-ca",
		a.path("ca.pem"))
	require.True(t, strings.HasPrefix(f.context.Address, "https://"), f.context.Address)
	require.True(t, strings.HasPrefix(f.context.NATSURL, "tls://"), f.context.NATSURL)

	shy := f.run("account", "get")
	require.NotZero(t, shy.code)
	require.Contains(t, shy.stderr, "certificate", "it presents none")
	_, err := http.Get(f.context.Address + "/healthz")
	require.Error(t, err, "whose certificate the system does not know")
	for _, name := range []string{"context.json", "operator.json"} {
		f.amend(name, map[string]string{"caFile": a.path("ca.pem"), "certFile": a.path("client.pem"),
			"keyFile": a.path("client.key")})
	}
	f.run("account", "get").ok(t)

	f.work("w1", "--nats-ca", a.path("ca.pem"), "--nats-cert", a.path("client.pem"), "--nats-key", a.path("client.key"))
	f.run("deployment", "create", "d", "--model", "anneal-base", "--watch").ok(t)
	f.run("complete", "--model", "accounts/default/deployments/d", "hello").ok(t)
	f.run("log", "verify", "--data", f.dir).ok(t)

	_, renewed := a.write("server", nil)
	eventually(t, "the renewed certificate is presented",
		func() bool { return f.serial(a) == renewed.SerialNumber.Int64() })
	require.Zero(t, f.end())
}

// serial returns the serial number of the certificate that the server presents.
func (f *fleet) serial(a *authority) int64 {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	pair, err := tls.LoadX509KeyPair(a.path("client.pem"), a.path("client.key"))
	require.NoError(f.t, err)
	conn, err := tls.Dial("tcp", strings.TrimPrefix(f.context.Address, "https://"),
		&tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}})
	require.NoError(f.t, err)
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].SerialNumber.Int64()
}

// amend changes fields of a context file.
func (f *fleet) amend(name string, fields map[string]string) {
	path := filepath.Join(f.dir, name)
	text := testutil.ReadFile(f.t, path)
	var content map[string]any
	require.NoError(f.t, json.Unmarshal(text, &content))
	for field, value := range fields {
		content[field] = value
	}
	text = testutil.Marshal(f.t, content)
	require.NoError(f.t, os.WriteFile(path, text, 0o600))
}

// TestLocalWorkerWithTLS checks that the local worker of a server downloads files from the server,
// whichever authority signed the server's certificate.
func TestLocalWorkerWithTLS(t *testing.T) {
	t.Parallel()
	a := newAuthority(t)
	a.write("server", nil)
	s := serve(t, t.TempDir(), "--tls-cert", a.path("server.pem"), "--tls-key", a.path("server.key"))
	s.run("deployment", "create", "d", "--model", "anneal-base", "--watch").ok(t)
	s.run("complete", "--model", "accounts/default/deployments/d", "hello").ok(t)
	require.Zero(t, s.end())
}

// TestServersWithoutTLSWarn checks that a server warns of an address that other machines can reach
// without TLS.
func TestServersWithoutTLSWarn(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir(), "--worker=false", "--listen", "0.0.0.0:0", "--nats-listen", "0.0.0.0:0", "--public-url",
		"http://127.0.0.1:1")
	require.Contains(t, s.log.output(), "the HTTP interface is open to other machines WITHOUT TLS")
	require.Contains(t, s.log.output(), "NATS is open to other machines WITHOUT TLS")
	require.Zero(t, s.end())
}

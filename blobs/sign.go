package blobs

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"gocloud.dev/blob"

	"anneal/domain"
)

// MaxTTL is the maximum validity of a signed URL, which is the limit of S3.
const MaxTTL = 7 * 24 * time.Hour

// SignGet returns a signed URL with which any client can read the file under key, or ranges of it,
// until ttl has passed.
func (s *Store) SignGet(ctx context.Context, key string, ttl time.Duration) (string, error) {
	return s.sign(ctx, http.MethodGet, key, 0, ttl)
}

// SignPut returns a signed URL with which any client can store up to limit bytes under key until
// ttl has passed; 0 stands for no limit. A bucket that signs its own URLs does not enforce the
// limit, so check the size of the file (see Size and Files) before using it.
func (s *Store) SignPut(ctx context.Context, key string, limit int64, ttl time.Duration) (string, error) {
	return s.sign(ctx, http.MethodPut, key, limit, ttl)
}

func (s *Store) sign(ctx context.Context, method, key string, limit int64, ttl time.Duration) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if ttl <= 0 || ttl > MaxTTL {
		return "", domain.Errorf(domain.InvalidArgument, "the validity of a signed URL must be above 0 and at most %s",
			MaxTTL)
	}
	if s.signer != nil {
		return s.signer.sign(grant{method, key, limit, s.now().Add(ttl)}), nil
	}
	signed, err := s.bucket.SignedURL(ctx, key, &blob.SignedURLOptions{Method: method, Expiry: ttl})
	return signed, explain(err, key)
}

// A grant describes the request that a signed URL permits.
type grant struct {
	method string
	key    string
	limit  int64 // maximum bytes to PUT; 0 stands for no limit
	until  time.Time
}

// A signer signs the URLs that Handler serves, and verifies them.
type signer struct {
	base *url.URL
	key  []byte
}

func newSigner(baseURL string, key []byte) (*signer, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, domain.Errorf(domain.InvalidArgument,
			"the base URL of files must be an http or https URL, such as http://HOST:PORT/blobs")
	}
	if len(key) < 16 {
		return nil, domain.Errorf(domain.InvalidArgument, "the key for signed URLs must have at least 16 bytes")
	}
	return &signer{&url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/")}, key}, nil
}

func (s *signer) sign(g grant) string {
	query := url.Values{"method": {g.method}, "until": {strconv.FormatInt(g.until.Unix(), 10)},
		"signature": {s.signature(g)}}
	if g.limit > 0 {
		query.Set("limit", strconv.FormatInt(g.limit, 10))
	}
	signed := *s.base
	signed.Path += "/" + g.key
	signed.RawQuery = query.Encode()
	return signed.String()
}

// signature returns the HMAC-SHA-256 of the grant, in base64url.
func (s *signer) signature(g grant) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "anneal blob\n%s\n%s\n%d\n%d", g.method, g.key, g.limit, g.until.Unix())
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify returns the grant of a URL, or an error if the URL is invalid or expired at now.
func (s *signer) verify(u *url.URL, now time.Time) (grant, error) {
	key, below := strings.CutPrefix(u.Path, s.base.Path+"/")
	query := u.Query()
	until, err := strconv.ParseInt(query.Get("until"), 10, 64)
	limit, limitErr := strconv.ParseInt("0"+query.Get("limit"), 10, 64)
	g := grant{query.Get("method"), key, limit, time.Unix(until, 0)}
	switch {
	case !below || err != nil || limitErr != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(s.signature(g))):
		return grant{}, &domain.Error{Code: domain.PermissionDenied, Reason: "LINK_FORGED",
			Message: "the signature of this URL is invalid: request a new URL, and use it unchanged"}
	case now.After(g.until):
		return grant{}, &domain.Error{Code: domain.PermissionDenied, Reason: "LINK_EXPIRED",
			Message: fmt.Sprintf("this URL expired at %s: request a new one", g.until.UTC().Format(time.RFC3339))}
	}
	return g, nil
}

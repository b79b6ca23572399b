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

// MaxTTL is the longest that a signed URL may be good for: the limit of S3.
const MaxTTL = 7 * 24 * time.Hour

// SignGet makes a URL with which anybody may read the file under key until
// ttl has passed, whole or in ranges.
func (s *Store) SignGet(ctx context.Context, key string, ttl time.Duration) (string, error) {
	return s.sign(ctx, http.MethodGet, key, 0, ttl)
}

// SignPut makes a URL with which anybody may store up to limit bytes under key
// until ttl has passed; 0 is no limit. A bucket that signs by itself cannot
// hold the limit: look at what arrived (Size, Files) before using it.
func (s *Store) SignPut(ctx context.Context, key string, limit int64, ttl time.Duration) (string, error) {
	return s.sign(ctx, http.MethodPut, key, limit, ttl)
}

func (s *Store) sign(ctx context.Context, method, key string, limit int64, ttl time.Duration) (string, error) {
	if err := checkKey(key); err != nil {
		return "", err
	}
	if ttl <= 0 || ttl > MaxTTL {
		return "", domain.Errorf(domain.InvalidArgument, "a signed URL must be good for more than nothing and at most %s", MaxTTL)
	}
	if s.signer != nil {
		return s.signer.sign(grant{method, key, limit, s.now().Add(ttl)}), nil
	}
	signed, err := s.bucket.SignedURL(ctx, key, &blob.SignedURLOptions{Method: method, Expiry: ttl})
	return signed, explain(err, key)
}

// A grant is what a signed URL allows.
type grant struct {
	method string
	key    string
	limit  int64 // most bytes to PUT; 0 is any number
	until  time.Time
}

// A signer makes URLs for Handler, and knows its own.
type signer struct {
	base *url.URL
	key  []byte
}

func newSigner(baseURL string, key []byte) (*signer, error) {
	base, err := url.Parse(baseURL)
	if err != nil || base.Host == "" || base.Scheme != "http" && base.Scheme != "https" {
		return nil, domain.Errorf(domain.InvalidArgument, "the base URL of files must be like http://HOST:PORT/blobs")
	}
	if len(key) < 16 {
		return nil, domain.Errorf(domain.InvalidArgument, "the key that signs URLs of files must have at least 16 bytes")
	}
	return &signer{&url.URL{Scheme: base.Scheme, Host: base.Host, Path: strings.TrimSuffix(base.Path, "/")}, key}, nil
}

func (s *signer) sign(g grant) string {
	query := url.Values{"method": {g.method}, "until": {strconv.FormatInt(g.until.Unix(), 10)}, "signature": {s.signature(g)}}
	if g.limit > 0 {
		query.Set("limit", strconv.FormatInt(g.limit, 10))
	}
	signed := *s.base
	signed.Path += "/" + g.key
	signed.RawQuery = query.Encode()
	return signed.String()
}

// signature is the HMAC-SHA-256 of the grant, base64url.
func (s *signer) signature(g grant) string {
	mac := hmac.New(sha256.New, s.key)
	fmt.Fprintf(mac, "anneal blob\n%s\n%s\n%d\n%d", g.method, g.key, g.limit, g.until.Unix())
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// verify answers what a URL grants at a time.
func (s *signer) verify(u *url.URL, now time.Time) (grant, error) {
	key, below := strings.CutPrefix(u.Path, s.base.Path+"/")
	query := u.Query()
	until, err := strconv.ParseInt(query.Get("until"), 10, 64)
	limit, limitErr := strconv.ParseInt("0"+query.Get("limit"), 10, 64)
	g := grant{query.Get("method"), key, limit, time.Unix(until, 0)}
	switch {
	case !below || err != nil || limitErr != nil || !hmac.Equal([]byte(query.Get("signature")), []byte(s.signature(g))):
		return grant{}, &domain.Error{Code: domain.PermissionDenied, Reason: "LINK_FORGED",
			Message: "this link is not one that was given out: ask for a new one, and use it unchanged"}
	case now.After(g.until):
		return grant{}, &domain.Error{Code: domain.PermissionDenied, Reason: "LINK_EXPIRED",
			Message: fmt.Sprintf("this link was good until %s: ask for a new one", g.until.UTC().Format(time.RFC3339))}
	}
	return g, nil
}

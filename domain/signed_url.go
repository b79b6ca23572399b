package domain

import "net/url"

// MaxURL is the maximum size of a URL in a request, in bytes.
const MaxURL = 8 << 10

// A SignedURL is an http or https URL. A client that has the whole URL may send the request that
// the URL's signature permits. So events contain only its Address in plain text, and the whole URL
// as a Sealed value. Events of earlier versions contain the whole URL in plain text.
type SignedURL string

// Address returns the part of the URL that responses may show: the URL without user, query string
// and fragment. It returns "" for a text that is not an http or https URL.
func (u SignedURL) Address() SignedURL {
	at, ok := u.parse()
	switch {
	case !ok:
		return ""
	case !u.hasMore(at):
		return u // the URL as the client gave it, not normalized
	}
	at.User, at.RawQuery, at.ForceQuery, at.Fragment, at.RawFragment = nil, "", false, "", ""
	return SignedURL(at.String())
}

// HasSecret reports whether the URL has a part that Address removes.
func (u SignedURL) HasSecret() bool {
	at, ok := u.parse()
	return ok && u.hasMore(at)
}

func (SignedURL) hasMore(at *url.URL) bool {
	return at.User != nil || at.RawQuery != "" || at.ForceQuery || at.Fragment != ""
}

func (u SignedURL) parse() (*url.URL, bool) {
	at, err := url.Parse(string(u))
	return at, err == nil && (at.Scheme == "http" || at.Scheme == "https") && at.Hostname() != ""
}

// check adds a violation of field to v, unless u is "" or can be the URL of a signed PUT. sealed is
// the sealed URL; it is required if u has a secret.
func (u SignedURL) check(v *Violations, field string, sealed *Sealed) {
	if u == "" {
		return
	}
	at, ok := u.parse()
	v.Require(len(u) <= MaxURL && ok && at.User == nil, field,
		"must be an http or https URL with a host and without a user name, of at most %d bytes: a signed URL for PUT", MaxURL)
	v.Require(!u.HasSecret() || sealed != nil, field, "must be sealed, because it has a query string")
}

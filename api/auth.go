package api

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"net/http"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A Key is a freshly minted API key. Text is shown once and never kept; what
// is kept is Hash and, to recognise the key by, Prefix.
type Key struct {
	Text   string
	Hash   []byte
	Prefix string
}

const (
	keyMark    = "ank"
	keySecret  = 32 // random bytes
	maxKeySize = 256
)

// MintKey makes a key for the named apiKeys resource:
// ank_<account>_<key id>_<64 hex digits><CRC-32 of all before, 8 hex digits>.
func MintKey(pepper []byte, name domain.Name) (Key, error) {
	secret := make([]byte, keySecret)
	if _, err := rand.Read(secret); err != nil {
		return Key{}, fmt.Errorf("minting %s: %w", name, err)
	}
	return mintFrom(pepper, name, secret), nil
}

// mintFrom makes the key of keySecret unguessable bytes.
func mintFrom(pepper []byte, name domain.Name, secret []byte) Key {
	text := strings.Join([]string{keyMark, name.Account(), name.ID(), hex.EncodeToString(secret)}, "_")
	text += checksum(text)
	return Key{text, hashKey(pepper, text), text[:len(text)-2*keySecret-8+4]}
}

// mint makes a key in a call: the same one when an earlier try of the call made
// it already.
func (c *call) mint(name domain.Name) Key {
	return mintFrom(c.Pepper, name, c.unguessable("key "+string(name)))
}

func checksum(text string) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) }

// hashKey is HMAC-SHA-256 of the key's text under the pepper. The key holds
// 256 random bits, so a slow password hash would add nothing.
func hashKey(pepper []byte, text string) []byte {
	mac := hmac.New(sha256.New, pepper)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// keyName reads whose key a text claims to be; false when it was mistyped.
func keyName(text string) (domain.Name, bool) {
	parts := strings.Split(text, "_")
	if len(text) > maxKeySize || len(parts) != 4 || parts[0] != keyMark || len(parts[3]) != 2*keySecret+8 {
		return "", false
	}
	body, sum := text[:len(text)-8], text[len(text)-8:]
	name, ok := domain.ParseName(string(domain.NewName(parts[1], domain.APIKeys.Collection, parts[2])), domain.APIKeys.Collection)
	return name, ok && checksum(body) == sum
}

// A caller is who sends a request: the holder of a key.
type caller struct {
	key     domain.Name
	account string
	role    string
}

// operator tells whether the caller runs the whole installation.
func (c caller) operator() bool { return c.account == domain.System && c.role == domain.RoleAdmin }

// A permission is a kind of thing that a role may do in its own account.
type permission int

const (
	toRead       permission = iota // get and list, and their events
	toFollow                       // the events of the account
	toReadModels                   // get and list models
	toWrite                        // create, change and delete
	toGuard                        // keys and secrets
	toPublish                      // say that a shape's version is validated or public
	toInfer                        // ask models
	toOperate                      // what concerns every account; the operator's alone
)

// granted is the one table of who may do what. The operator may do all of it
// in every account.
var granted = map[string][]permission{
	domain.RoleAdmin:     {toRead, toFollow, toReadModels, toWrite, toGuard, toPublish, toInfer},
	domain.RoleUser:      {toRead, toFollow, toReadModels, toWrite, toInfer},
	domain.RoleInference: {toReadModels, toInfer},
	domain.RoleReader:    {toFollow},
}

// authenticate finds out who sends the request.
func authenticate(rows eventlog.Rows, pepper []byte, r *http.Request, bareKey bool, now time.Time) (caller, error) {
	text, err := credential(r, bareKey)
	if err != nil {
		return caller{}, err
	}
	return holder(rows, pepper, text, now)
}

// holder is who has a key.
func holder(rows eventlog.Rows, pepper []byte, text string, now time.Time) (caller, error) {
	name, ok := keyName(text)
	if !ok {
		return caller{}, unauthenticated("API_KEY_MALFORMED", "the API key is not whole: a key looks like ank_ACCOUNT_ID_ and 72 hexadecimal digits; copy it again")
	}
	state, _ := rows.Row(name)
	key, _ := state.(domain.APIKey)
	if !hmac.Equal(hashKey(pepper, text), key.Hash) {
		return caller{}, unauthenticated("API_KEY_UNKNOWN", "the API key is not known here: it was deleted, or belongs to another installation; ask an admin of your account for a new one")
	}
	if key.Expired(now) {
		return caller{}, unauthenticated("API_KEY_EXPIRED", "the API key expired at "+key.ExpireTime.UTC().Format(time.RFC3339)+": ask an admin of your account for a new one")
	}
	return caller{name, name.Account(), key.Role}, nil
}

var errNoKey = unauthenticated("API_KEY_MISSING",
	"the request carries no API key: send the header Authorization: Bearer API_KEY")

// credential is the key in the Authorization header. The scheme word is
// case-insensitive; a bare key is accepted where bare is set.
func credential(r *http.Request, bare bool) (string, error) {
	header := strings.TrimSpace(r.Header.Get("Authorization"))
	if header == "" {
		return "", errNoKey
	}
	scheme, key, found := strings.Cut(header, " ")
	switch {
	case found && strings.EqualFold(scheme, "Bearer"):
		return strings.TrimSpace(key), nil
	case bare && !found:
		return header, nil
	}
	return "", unauthenticated("API_KEY_MALFORMED", "the Authorization header must be: Bearer API_KEY")
}

func unauthenticated(reason, message string) error {
	return &domain.Error{Code: domain.Unauthenticated, Reason: reason, Message: message}
}

// authorise decides whether the caller may do this in an account. Its answer
// never depends on what exists there.
func (c caller) authorise(account string, what permission) error {
	if c.operator() {
		return nil
	}
	if c.account != account {
		return forbidden("OTHER_ACCOUNT", "the API key belongs to accounts/%s and may not do this in accounts/%s", c.account, account)
	}
	return c.may(what)
}

// may decides whether the caller's role allows something in its own account.
func (c caller) may(what permission) error {
	if c.operator() {
		return nil
	}
	for _, p := range granted[c.role] {
		if p == what {
			return nil
		}
	}
	if what == toOperate {
		return forbidden("OPERATOR_ONLY", "only the operator's key may do this")
	}
	return forbidden("ROLE", "the API key's role is %s, which may not do this: use a key with another role", c.role)
}

func forbidden(reason, format string, args ...any) error {
	f := domain.Errorf(domain.PermissionDenied, format, args...)
	f.Reason = reason
	return f
}

package request

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"anneal/domain"
	"anneal/eventlog"
)

// A Key is a new API key. Text is the key that the client sends; the API returns it once and never
// stores it. Hash and Prefix are stored.
type Key struct {
	Text   string
	Hash   []byte
	Prefix string
}

const (
	keyMark    = "ank"
	keySecret  = 32 // number of random bytes in an API key
	maxKeySize = 256
)

// MintKey returns a new key for the named apiKeys resource:
// ank_<account>_<key id>_<64 hex digits><CRC-32 of everything before it, 8 hex digits>.
func MintKey(pepper []byte, name domain.Name) (Key, error) {
	secret := make([]byte, keySecret)
	if _, err := rand.Read(secret); err != nil {
		return Key{}, fmt.Errorf("create API key %s: %w", name, err)
	}
	return mintFrom(pepper, name, secret), nil
}

// mintFrom returns the key of an API key resource from its secret part, which must be keySecret
// random bytes.
func mintFrom(pepper []byte, name domain.Name, secret []byte) Key {
	text := strings.Join([]string{keyMark, name.Account(), name.ID(), hex.EncodeToString(secret)}, "_")
	text += checksum(text)
	return Key{text, HashKey(pepper, text), text[:len(text)-2*keySecret-8+4]}
}

// Mint returns a new API key for a resource name. With an idempotency key, each attempt of the
// request gets the same API key.
func (c *Call) Mint(name domain.Name) Key {
	return mintFrom(c.Pepper, name, c.unguessable("key "+string(name)))
}

func checksum(text string) string { return fmt.Sprintf("%08x", crc32.ChecksumIEEE([]byte(text))) }

// HashKey returns the HMAC-SHA-256 of the key's text under the pepper. A slow password hash is not
// needed, because the key has 256 random bits.
func HashKey(pepper []byte, text string) []byte {
	mac := hmac.New(sha256.New, pepper)
	mac.Write([]byte(text))
	return mac.Sum(nil)
}

// KeyName returns the resource name that the API key text contains. It returns false when text is
// not in the format of API keys or has a wrong checksum.
func KeyName(text string) (domain.Name, bool) {
	parts := strings.Split(text, "_")
	if len(text) > maxKeySize || len(parts) != 4 || parts[0] != keyMark || len(parts[3]) != 2*keySecret+8 {
		return "", false
	}
	body, sum := text[:len(text)-8], text[len(text)-8:]
	name, ok := domain.ParseName(string(domain.NewName(parts[1], domain.APIKeys.Collection, parts[2])),
		domain.APIKeys.Collection)
	return name, ok && checksum(body) == sum
}

// A Principal is the caller of an authenticated request: the API key or the user of an identity
// provider (domain.UserName), and its account and role.
type Principal struct {
	Key     domain.Name
	Account string
	Role    string
	// Priority is the highest priority of the principal's inference requests; "" stands for
	// domain.PriorityInteractive.
	Priority string
	Expires  time.Time // end of the ID token of a user; zero for an API key
}

// credential returns a noun for messages: the API key, or the login of a user.
func (c Principal) credential() string {
	if _, isUser := domain.UserOf(c.Key); isUser {
		return "login"
	}
	return "API key"
}

// IsOperator reports whether the principal is the operator of the installation: an admin of the
// account domain.System.
func (c Principal) IsOperator() bool { return c.Account == domain.System && c.Role == domain.RoleAdmin }

// SeesNodes reports whether the principal may see the names of nodes: it belongs to the operator's
// account.
func (c Principal) SeesNodes() bool { return c.Account == domain.System }

// A Permission is what a role may do in its own account.
type Permission int

const (
	Read          Permission = iota // get and list resources, and read the events of one resource
	FollowEvents                    // read the events of the whole account
	ReadModels                      // get and list models
	Write                           // create, change and delete resources
	ManageSecrets                   // manage API keys and secrets
	Publish                         // mark a version of a shape as validated or public
	Infer                           // send requests to models
	// send operations on all accounts and the installation; only the operator has this permission
	Operate
)

// Granted lists the permissions of each role in its own account. The operator has all permissions
// in every account.
var Granted = map[string][]Permission{
	domain.RoleAdmin:     {Read, FollowEvents, ReadModels, Write, ManageSecrets, Publish, Infer},
	domain.RoleUser:      {Read, FollowEvents, ReadModels, Write, Infer},
	domain.RoleInference: {ReadModels, Infer},
	domain.RoleReader:    {FollowEvents},
}

// authenticate returns the principal of the API key in the header Authorization, or an error if the
// key is missing, unknown or expired at the time now. If bareKey is true, it accepts a key without
// the scheme Bearer.
func authenticate(rows eventlog.Rows, pepper []byte, r *http.Request, bareKey bool, now time.Time) (Principal, error) {
	text, err := Credential(r, bareKey)
	if err != nil {
		return Principal{}, err
	}
	return PrincipalOf(rows, pepper, text, now)
}

// PrincipalOf returns the principal of the API key text at the time now, or an error when the key
// is mistyped, unknown or expired.
func PrincipalOf(rows eventlog.Rows, pepper []byte, text string, now time.Time) (Principal, error) {
	name, ok := KeyName(text)
	if !ok {
		return Principal{}, unauthenticated("API_KEY_MALFORMED",
			"the API key is mistyped or cut off: a key is ank_ACCOUNT_KEYID_ followed by 72 hexadecimal digits, the last "+
				"8 of which are a checksum; copy the whole key again")
	}
	state, _ := rows.Row(name)
	key, _ := state.(domain.APIKey)
	if !hmac.Equal(HashKey(pepper, text), key.Hash) {
		return Principal{}, unauthenticated(reasonUnknownKey,
			"the API key is unknown: it was deleted, or belongs to another installation; ask an admin of your account for a "+
				"new key")
	}
	if key.Expired(now) {
		return Principal{}, unauthenticated("API_KEY_EXPIRED",
			"the API key expired at "+key.ExpireTime.UTC().Format(time.RFC3339)+": ask an admin of your account for a new key")
	}
	return Principal{Key: name, Account: name.Account(), Role: key.Role, Priority: key.Priority}, nil
}

var ErrNoKey = unauthenticated("API_KEY_MISSING",
	"the request has no API key: send the header Authorization: Bearer API_KEY")

// Credential returns the key of the Authorization header. The scheme is case-insensitive; a key
// without a scheme is accepted when bare is true.
func Credential(r *http.Request, bare bool) (string, error) {
	header := strings.TrimSpace(r.Header.Get("Authorization"))
	if header == "" {
		return "", ErrNoKey
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

// Authorize returns an error unless the principal has a permission in an account. The result does
// not depend on which resources exist, so that it does not disclose them.
func (c Principal) Authorize(account string, permission Permission) error {
	if c.IsOperator() {
		return nil
	}
	if c.Account != account {
		return Forbidden("OTHER_ACCOUNT",
			"the %s belongs to accounts/%s, which may not send this request for accounts/%s: use an API key of that "+
				"account", c.credential(), c.Account, account)
	}
	return c.Require(permission)
}

// Require returns an error unless the principal has a permission in its own account.
func (c Principal) Require(permission Permission) error {
	if c.IsOperator() {
		return nil
	}
	for _, p := range Granted[c.Role] {
		if p == permission {
			return nil
		}
	}
	if permission == Operate {
		return Forbidden("OPERATOR_ONLY", "only the operator's API key may send this request")
	}
	return Forbidden("ROLE", "the %s's role is %s, which may not send this request: use a key with the role %s",
		c.credential(), c.Role, strings.Join(rolesWith(permission), " or "))
}

// rolesWith returns the roles that have a permission in their own account.
func rolesWith(permission Permission) (roles []string) {
	for _, role := range slices.Sorted(maps.Keys(Granted)) {
		if slices.Contains(Granted[role], permission) {
			roles = append(roles, role)
		}
	}
	return roles
}

func Forbidden(reason, format string, args ...any) error {
	f := domain.Errorf(domain.PermissionDenied, format, args...)
	f.Reason = reason
	return f
}

type (
	DirectLabelKey struct{}
	DirectKey      struct{}
)

// DirectOf returns the deployment or trainer job whose direct route a request uses, or "" when it
// uses none.
func DirectOf(r *http.Request) domain.Name {
	name, _ := r.Context().Value(DirectKey{}).(domain.Name)
	return name
}

func IsDirect(r *http.Request) bool {
	_, direct := r.Context().Value(DirectLabelKey{}).(string)
	return direct
}

// hashDirectKey hashes a key together with the name of its deployment.
func hashDirectKey(pepper []byte, deployment domain.Name, key string) []byte {
	return HashKey(pepper, strings.Join([]string{"direct route key", string(deployment), key}, "\x00"))
}

func (c *Call) HashDirectKeys(deployment domain.Name, keys []string) (hashes [][]byte) {
	for _, key := range keys {
		hashes = append(hashes, hashDirectKey(c.Pepper, deployment, key))
	}
	return hashes
}

// authenticate returns the principal: the holder of an API key or of an ID token or, on a direct
// route, of one of the deployment's own keys. A key of a deployment has the role inference in the
// deployment's account.
func (c *Call) authenticate() (Principal, error) {
	if c.Direct != "" {
		row, ok := c.View().Deployments.Get(c.Direct)
		if text, err := Credential(c.Request, false); ok && err == nil &&
			holds(row.State.DirectKeys, hashDirectKey(c.Pepper, c.Direct, text)) {
			return Principal{Key: c.Direct, Account: c.Direct.Account(), Role: domain.RoleInference}, nil
		}
	}
	if c.Tokens != nil {
		if text, err := Credential(c.Request, c.Operation.BareKey); err == nil && IsToken(text) {
			return authenticateToken(c, text)
		}
	}
	who, err := authenticate(c.World, c.Pepper, c.Request, c.Operation.BareKey, c.Time)
	var f *domain.Error
	if c.Direct.Collection() == domain.Deployments.Collection && errors.As(err, &f) &&
		f.Reason != "API_KEY_MISSING" && f.Reason != "API_KEY_EXPIRED" {
		return Principal{}, unauthenticated(reasonUnknownKey,
			"the key is neither one of the deployment's directRouteApiKeys nor an API key of its account: send one of them in "+
				"the header Authorization: Bearer KEY")
	}
	return who, err
}

// holds reports whether keys contain hash. It compares hash with every key, so that its duration
// does not depend on the keys.
func holds(keys [][]byte, hash []byte) (found bool) {
	for _, key := range keys {
		found = hmac.Equal(key, hash) || found
	}
	return found
}

// mayTakeRoute returns an error unless the principal may send requests to models in the account of
// the direct route's deployment.
func (c *Call) mayTakeRoute() error {
	c.Account = c.Direct.Account()
	return c.Principal.Authorize(c.Account, Infer)
}

package domain

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"strconv"
	"strings"
	"time"
)

// SigningKeys are the keys that sign the requests to a webhook, as the specification Standard
// Webhooks defines: a shared key for HMAC-SHA256 (signatures v1) and a key pair for Ed25519
// (signatures v1a).
type SigningKeys struct {
	shared  []byte
	private ed25519.PrivateKey
}

// Prefixes of the text forms of keys, and the size of each key in bytes.
const (
	sharedKeyPrefix  = "whsec_"
	privateKeyPrefix = "whsk_"
	publicKeyPrefix  = "whpk_"
	signingKeySize   = 32
)

// NewSigningKeys returns keys: shared is the HMAC key, and seed that of the Ed25519 key pair, each
// 32 random bytes.
func NewSigningKeys(shared, seed []byte) SigningKeys {
	return SigningKeys{shared[:signingKeySize], ed25519.NewKeyFromSeed(seed[:signingKeySize])}
}

// ParseSigningKeys parses a result of Text; it returns false for any other text.
func ParseSigningKeys(text SecretValue) (SigningKeys, bool) {
	one, two, _ := strings.Cut(text.Reveal(), " ")
	shared, err := base64.StdEncoding.DecodeString(strings.TrimPrefix(one, sharedKeyPrefix))
	seed, failed := base64.StdEncoding.DecodeString(strings.TrimPrefix(two, privateKeyPrefix))
	if err != nil || failed != nil || len(shared) != signingKeySize || len(seed) != signingKeySize {
		return SigningKeys{}, false
	}
	return NewSigningKeys(shared, seed), true
}

// Text returns the text form of both secret keys, to be sealed.
func (k SigningKeys) Text() SecretValue {
	return SecretValue(k.Shared() + " " + privateKeyPrefix + base64.StdEncoding.EncodeToString(k.private.Seed()))
}

// Shared returns the shared key, with which the receiver verifies signatures v1.
func (k SigningKeys) Shared() string {
	return sharedKeyPrefix + base64.StdEncoding.EncodeToString(k.shared)
}

// PublicKey returns the public key, with which the receiver verifies signatures v1a.
func (k SigningKeys) PublicKey() string {
	return publicKeyPrefix + base64.StdEncoding.EncodeToString(k.private.Public().(ed25519.PublicKey))
}

// Sign returns the signatures of a message: the value of the header webhook-signature.
func (k SigningKeys) Sign(id string, at time.Time, body []byte) string {
	message := append([]byte(id+"."+strconv.FormatInt(at.Unix(), 10)+"."), body...)
	mac := hmac.New(sha256.New, k.shared)
	mac.Write(message)
	return "v1," + base64.StdEncoding.EncodeToString(mac.Sum(nil)) + " v1a," +
		base64.StdEncoding.EncodeToString(ed25519.Sign(k.private, message))
}

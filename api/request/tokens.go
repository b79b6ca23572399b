package request

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
)

// SealToken returns an opaque, signed page token that contains cursor, the place in a list at which
// the next page begins. OpenToken accepts the token only with the same binding: see TokenBinding.
func SealToken(key []byte, binding string, cursor any) string {
	data, err := json.Marshal(cursor)
	if err != nil {
		panic(err) // JSON can encode all types of cursors
	}
	return base64.RawURLEncoding.EncodeToString(append(tokenSeal(key, binding, data), data...))
}

const tokenSealSize = 16

func tokenSeal(key []byte, binding string, data []byte) []byte {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("page token\n" + binding + "\n"))
	mac.Write(data)
	return mac.Sum(nil)[:tokenSealSize]
}

func OpenToken(key []byte, binding, token string, cursor any) bool {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < tokenSealSize ||
		!hmac.Equal(data[:tokenSealSize], tokenSeal(key, binding, data[tokenSealSize:])) {
		return false
	}
	return json.Unmarshal(data[tokenSealSize:], cursor) == nil
}

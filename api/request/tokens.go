package request

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
)

// SealToken returns an opaque page token that contains place, a cursor into a list. OpenToken
// accepts the token only with the same binding, which identifies the request.
func SealToken(key []byte, binding string, place any) string {
	data, err := json.Marshal(place)
	if err != nil {
		panic(err) // never happens: JSON can encode every cursor type
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

func OpenToken(key []byte, binding, token string, place any) bool {
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < tokenSealSize ||
		!hmac.Equal(data[:tokenSealSize], tokenSeal(key, binding, data[tokenSealSize:])) {
		return false
	}
	return json.Unmarshal(data[tokenSealSize:], place) == nil
}

package query

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"

	"anneal/domain"
)

// A cursor is the content of a page token: the order keys of a page's last item.
type cursor struct {
	Name   domain.Name `json:"n"`
	Values []*string   `json:"k,omitempty"`
	// Position is that of the rows, if they are not those of the present.
	Position uint64 `json:"p,omitempty"`
}

var errToken = errors.New(
	"is not a token of this list: send it with the same parameters as the request that returned it, or leave " +
		"pageToken out to begin again")

func sealToken(q Query, keys []orderKey, name domain.Name, values []keyValue) string {
	c := cursor{Name: name, Position: q.Position}
	for i := range keys {
		c.Values = append(c.Values, keys[i].spell(values[i]))
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // impossible: a cursor has only strings
	}
	return base64.RawURLEncoding.EncodeToString(append(seal(q, data), data...))
}

func openToken(q Query, keys []orderKey) (domain.Name, []keyValue, error) {
	if len(q.PageToken) > maxPageToken {
		return "", nil, errToken
	}
	token, err := base64.RawURLEncoding.Strict().DecodeString(q.PageToken)
	if err != nil || len(token) < sealSize || !hmac.Equal(token[:sealSize], seal(q, token[sealSize:])) {
		return "", nil, errToken
	}
	var c cursor
	if err := json.Unmarshal(token[sealSize:], &c); err != nil || len(c.Values) != len(keys) {
		return "", nil, errToken
	}
	values := make([]keyValue, len(keys))
	for i := range keys {
		if values[i], err = keys[i].parse(c.Values[i]); err != nil {
			return "", nil, errToken
		}
	}
	return c.Name, values, nil
}

// PinnedPosition returns the position of the rows of the list that returned a page token; 0 for the
// present, or if the token is not valid. It does not check the seal of the token, as List does.
func PinnedPosition(token string) uint64 {
	var c cursor
	if len(token) > maxPageToken {
		return 0
	}
	data, err := base64.RawURLEncoding.Strict().DecodeString(token)
	if err != nil || len(data) < sealSize || json.Unmarshal(data[sealSize:], &c) != nil {
		return 0
	}
	return c.Position
}

const sealSize = 16 // length in bytes of the HMAC in a token

// seal returns the HMAC of data, the content of a token, and of the query to which the token
// belongs.
func seal(q Query, data []byte) []byte {
	mac := hmac.New(sha256.New, q.Key)
	for _, part := range []string{q.Binding, q.Filter, q.OrderBy, q.DefaultOrder, string(data)} {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:sealSize]
}

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

// A cursor is the content of a page token: the values of the order keys of the page's last item.
type cursor struct {
	Name   domain.Name `json:"n"`
	Values []*string   `json:"k,omitempty"`
	// Position is the log position of the list's rows; 0 for a list of the current rows.
	Position uint64 `json:"p,omitempty"`
}

var errToken = errors.New(
	"is not a page token of this list: send it with the same parameters as the request that returned it, or leave " +
		"pageToken out to begin again")

func sealToken(q Query, keys []orderKey, name domain.Name, values []keyValue) string {
	c := cursor{Name: name, Position: q.Position}
	for i := range keys {
		c.Values = append(c.Values, keys[i].encode(values[i]))
	}
	data, err := json.Marshal(c)
	if err != nil {
		panic(err) // impossible, because a cursor has only strings and integers
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
		if values[i], err = keys[i].decode(c.Values[i]); err != nil {
			return "", nil, errToken
		}
	}
	return c.Name, values, nil
}

// PinnedPosition returns the log position of the rows of the list that returned a page token; 0 if
// the list has the current rows, or the token cannot be decoded. Unlike List, it does not check the
// token's HMAC.
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

const sealSize = 16 // bytes of the HMAC in a page token

// seal returns the HMAC of data, the content of a page token, together with the query for which the
// token is valid.
func seal(q Query, data []byte) []byte {
	mac := hmac.New(sha256.New, q.Key)
	for _, part := range []string{q.Binding, q.Filter, q.OrderBy, q.DefaultOrder, string(data)} {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(part))))
		mac.Write([]byte(part))
	}
	return mac.Sum(nil)[:sealSize]
}

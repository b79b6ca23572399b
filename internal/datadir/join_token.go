package datadir

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"anneal/domain"
	"anneal/workers/coordinator"
)

// Default and maximum time for which a join token is valid.
const (
	JoinTokenTTL    = 24 * time.Hour
	MaxJoinTokenTTL = 366 * 24 * time.Hour
)

// A join token is ant_NODE_ID_EXPIRY_MAC: NODE is the only node that it enrolls, or empty for any;
// EXPIRY is in Unix seconds. Tokens of older versions are ant_NODE_MAC and do not expire: they
// enroll nodes that were never revoked.
var (
	joinTokenForm   = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{12})_([0-9]{1,12})_([0-9a-f]{64})$`)
	legacyTokenForm = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{64})$`)
)

// JoinToken returns a token with which an agent enrolls a node: the named one or, if node is "",
// any node whose name is not taken. The token is valid until expires.
func (d Dir) JoinToken(node string, expires time.Time) (string, error) {
	key, err := d.Key("nodes")
	if err != nil {
		return "", err
	}
	var id [6]byte
	rand.Read(id[:])
	body := node + "_" + hex.EncodeToString(id[:]) + "_" + strconv.FormatInt(expires.Unix(), 10)
	return "ant_" + body + "_" + nodeMAC(key, "join|"+body), nil
}

func nodeMAC(key []byte, text string) string {
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte(text))
	return hex.EncodeToString(mac.Sum(nil))
}

// VerifyJoinToken returns the ID of a valid token and the node that it enrolls, or an error with
// the reason why the token is invalid.
func VerifyJoinToken(key []byte, token string, now time.Time) (coordinator.JoinToken, error) {
	if form := legacyTokenForm.FindStringSubmatch(token); form != nil {
		if !hmac.Equal([]byte(form[2]), []byte(nodeMAC(key, "node|"+form[1]))) {
			return coordinator.JoinToken{}, errors.New("the join token is mistyped, or belongs to another server")
		}
		return coordinator.JoinToken{ID: domain.LegacyJoinToken, Node: form[1]}, nil
	}
	form := joinTokenForm.FindStringSubmatch(token)
	if form == nil || !hmac.Equal([]byte(form[4]), []byte(nodeMAC(key, "join|"+form[1]+"_"+form[2]+"_"+form[3]))) {
		return coordinator.JoinToken{}, errors.New("the join token is mistyped, cut off, or belongs to another server")
	}
	seconds, err := strconv.ParseInt(form[3], 10, 64)
	if expires := time.Unix(seconds, 0); err != nil || !now.Before(expires) {
		return coordinator.JoinToken{}, fmt.Errorf("the join token expired at %s", expires.UTC().Format(time.RFC3339))
	}
	return coordinator.JoinToken{ID: form[2], Node: form[1]}, nil
}

// ReadJoinToken reads the token in a file, and returns it with the node that it enrolls; "" is any
// node. Errors never contain other content of the file.
func ReadJoinToken(path string) (token, node string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return "", "", err
	}
	token = strings.TrimSpace(string(text))
	for _, form := range []*regexp.Regexp{joinTokenForm, legacyTokenForm} {
		if parts := form.FindStringSubmatch(token); parts != nil {
			return token, parts[1], nil
		}
	}
	return "", "", fmt.Errorf("%s contains no join token: create one with `anneal node token` on the server's machine",
		path)
}

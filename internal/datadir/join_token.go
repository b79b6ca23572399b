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

// Default and maximum lifetime of a join token.
const (
	JoinTokenTTL    = 24 * time.Hour
	MaxJoinTokenTTL = 366 * 24 * time.Hour
)

// A join token is ant_NODE_ID_EXPIRY_MAC. NODE is the ID of the only node that it can enroll; empty
// stands for any node. EXPIRY is in Unix seconds. Tokens of older versions are ant_NODE_MAC: they
// do not expire, but cannot enroll a node that was revoked.
var (
	joinTokenForm   = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{12})_([0-9]{1,12})_([0-9a-f]{64})$`)
	legacyTokenForm = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{64})$`)
)

// JoinToken returns a token with which an agent can enroll a node until expires. node is the ID of
// the node; "" stands for any node whose ID is not taken.
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

// VerifyJoinToken verifies a token with the key named nodes, and returns the token's ID and the
// node that it can enroll. The error states why the token is invalid or has expired.
func VerifyJoinToken(key []byte, token string, now time.Time) (coordinator.JoinToken, error) {
	if form := legacyTokenForm.FindStringSubmatch(token); form != nil {
		if !hmac.Equal([]byte(form[2]), []byte(nodeMAC(key, "node|"+form[1]))) {
			return coordinator.JoinToken{}, errors.New("the join token was mistyped, or belongs to another server: " +
				"create one with `anneal node token`")
		}
		return coordinator.JoinToken{ID: domain.LegacyJoinToken, Node: form[1]}, nil
	}
	form := joinTokenForm.FindStringSubmatch(token)
	if form == nil || !hmac.Equal([]byte(form[4]), []byte(nodeMAC(key, "join|"+form[1]+"_"+form[2]+"_"+form[3]))) {
		return coordinator.JoinToken{}, errors.New("the join token was mistyped or cut off, or belongs to another " +
			"server: create one with `anneal node token`")
	}
	seconds, err := strconv.ParseInt(form[3], 10, 64)
	if expires := time.Unix(seconds, 0); err != nil || !now.Before(expires) {
		return coordinator.JoinToken{}, fmt.Errorf("the join token expired at %s: create one with `anneal node token`",
			expires.UTC().Format(time.RFC3339))
	}
	return coordinator.JoinToken{ID: form[2], Node: form[1]}, nil
}

// ReadJoinToken returns the join token in a file, and the ID of the node that it can enroll; ""
// stands for any node. Errors never contain the content of the file.
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

package main

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

// Bounds of how long a join token is good for.
const (
	joinTokenTime    = 24 * time.Hour
	maxJoinTokenTime = 366 * 24 * time.Hour
)

// A join token is ant_NODE_ID_EXPIRY_MAC: NODE is the only node that it enrols,
// or nothing for any; EXPIRY is in Unix seconds. Tokens of older versions are
// ant_NODE_MAC and do not expire: they enrol nodes that were never revoked.
var (
	joinTokenForm   = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{12})_([0-9]{1,12})_([0-9a-f]{64})$`)
	legacyTokenForm = regexp.MustCompile(`^ant_([a-z0-9-]*)_([0-9a-f]{64})$`)
)

// joinToken makes a token with which an agent enrols: the named node's, or,
// when node is "", one whose name nobody has.
func (f folder) joinToken(node string, expires time.Time) (string, error) {
	key, err := f.key("nodes")
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

// verifyJoinToken answers what a token is good for, or why it is not.
func verifyJoinToken(key []byte, token string, now time.Time) (coordinator.JoinToken, error) {
	if form := legacyTokenForm.FindStringSubmatch(token); form != nil {
		if !hmac.Equal([]byte(form[2]), []byte(nodeMAC(key, "node|"+form[1]))) {
			return coordinator.JoinToken{}, errors.New("its token is another server's")
		}
		return coordinator.JoinToken{ID: domain.LegacyJoinToken, Node: form[1]}, nil
	}
	form := joinTokenForm.FindStringSubmatch(token)
	if form == nil || !hmac.Equal([]byte(form[4]), []byte(nodeMAC(key, "join|"+form[1]+"_"+form[2]+"_"+form[3]))) {
		return coordinator.JoinToken{}, errors.New("its token is another server's, or no token")
	}
	seconds, err := strconv.ParseInt(form[3], 10, 64)
	if expires := time.Unix(seconds, 0); err != nil || !now.Before(expires) {
		return coordinator.JoinToken{}, fmt.Errorf("its token expired at %s", expires.UTC().Format(time.RFC3339))
	}
	return coordinator.JoinToken{ID: form[2], Node: form[1]}, nil
}

// readToken reads the token in a file, and the node that it is good for; "" is
// any. What else the file may hold is not shown.
func readToken(path string) (token, node string, err error) {
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
	return "", "", fmt.Errorf("%s holds no node's token: `anneal node token` on the server's machine makes one", path)
}

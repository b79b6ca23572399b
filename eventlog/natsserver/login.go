package natsserver

import (
	"strings"

	"github.com/nats-io/jwt/v2"
)

// A Login is an attempt of a node, or of a reader of one account, to connect. It was accepted if
// Err is nil.
type Login struct {
	User     string // ID of the node, or user name of the reader, as the client sent it, not verified
	IsReader bool
	Address  string // IP address of the client
	Err      error
}

// ParseReader splits the user name of a reader into the account and the ID of the API key. It does
// not verify that they exist.
func ParseReader(user string) (account, id string, ok bool) {
	account, id, ok = strings.Cut(user, ".")
	return account, id, ok && account != "" && id != ""
}

// loggedIn reports an accepted or refused login to observe, which may be nil.
func loggedIn(observe func(Login), request *jwt.AuthorizationRequestClaims, isReader bool, err error) {
	if observe != nil {
		observe(Login{User: request.ConnectOptions.Username, IsReader: isReader, Address: request.ClientInformation.Host,
			Err: err})
	}
}

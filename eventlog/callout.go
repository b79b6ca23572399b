package eventlog

import (
	"fmt"
	"time"

	"github.com/nats-io/jwt/v2"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nkeys"

	"anneal/domain"
)

const calloutSubject = "$SYS.REQ.USER.AUTH"

// A node may answer each request that it received this often and this long: a
// streamed completion is one answer in many parts.
const (
	answersPerRequest = 1_000_000
	answersFor        = time.Hour
)

// NewIssuer makes the pair of keys with which the control plane vouches for
// nodes: the seed stays with it, the public key stands in the server's
// configuration as ANNEAL_NATS_ISSUER.
func NewIssuer() (seed, public string, err error) {
	keys, err := nkeys.CreateAccount()
	if err != nil {
		return "", "", fmt.Errorf("eventlog: making an issuer: %w", err)
	}
	secret, err := keys.Seed()
	if err != nil {
		return "", "", fmt.Errorf("eventlog: making an issuer: %w", err)
	}
	public, err = keys.PublicKey()
	return string(secret), public, err
}

// vouch answers the server's questions about who connects, until the
// connection is closed. Several control planes share the questions.
func vouch(nc *nats.Conn, seed string, verify func(node, token string) bool, readers *accountReaders) error {
	keys, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return domain.Faultf(domain.InvalidArgument, "the issuer's seed cannot be read: it must be an account seed, SA and 56 more characters")
	}
	public, err := keys.PublicKey()
	if err != nil || !nkeys.IsValidPublicAccountKey(public) {
		return domain.Faultf(domain.InvalidArgument, "the issuer's seed is none of an account: it must begin with SA")
	}
	_, err = nc.QueueSubscribe(calloutSubject, "anneal", func(m *nats.Msg) {
		question, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
		if err != nil {
			return // nobody who is entitled to an answer
		}
		if readers.concerns(question) {
			go readers.answer(m, question, keys) // it may take a while to open an account's mirrors
			return
		}
		if answer, err := answer(question, keys, verify); err == nil {
			_ = m.Respond([]byte(answer))
		}
	})
	if err != nil {
		return fmt.Errorf("eventlog: vouching for nodes: %w", err)
	}
	return nc.Flush()
}

func answer(question *jwt.AuthorizationRequestClaims, keys nkeys.KeyPair, verify func(node, token string) bool) (string, error) {
	response := jwt.NewAuthorizationResponseClaims(question.UserNkey)
	response.Audience = question.Server.ID
	node := question.ConnectOptions.Username
	if !domain.ValidID(node) || verify == nil || !verify(node, question.ConnectOptions.Password) {
		response.Error = "the node's id or token is wrong"
		return response.Encode(keys)
	}
	user := jwt.NewUserClaims(question.UserNkey)
	user.Name = node
	user.Audience = "AGENTS"
	user.Permissions = nodePermissions(node)
	token, err := user.Encode(keys)
	if err != nil {
		return "", err
	}
	response.Jwt = token
	return response.Encode(keys)
}

// nodePermissions let a node report, be told, ask and answer, under its own
// name only.
func nodePermissions(node string) jwt.Permissions {
	return jwt.Permissions{
		Pub:  jwt.Permission{Allow: jwt.StringList{"agents." + node + ".>"}},
		Sub:  jwt.Permission{Allow: jwt.StringList{"work." + node + ".>", "_INBOX." + node + ".>"}},
		Resp: &jwt.ResponsePermission{MaxMsgs: answersPerRequest, Expires: answersFor},
	}
}

// AgentOptions are what a node connects with: its id, its token and the prefix
// of the only inboxes it may use.
func AgentOptions(node, token string) []nats.Option {
	return []nats.Option{
		nats.Name("anneal agent " + node),
		nats.UserInfo(node, token),
		nats.CustomInboxPrefix("_INBOX." + node),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a token may become good again
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
	}
}

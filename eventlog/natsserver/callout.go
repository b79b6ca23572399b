package natsserver

import (
	"context"
	"encoding/base64"
	"errors"
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

// A NodeLogin is an agent that connects.
type NodeLogin struct {
	Node      string // its ID
	PublicKey string // of the NKey with which it signed the server's nonce; "" when it signed none
	Token     string // to join with; may be ""
	Session   NodeSession
}

// VerifyNode lets an agent in, or says why not. It must answer within
// verifyWithin; its error is for the server's log.
type VerifyNode func(ctx context.Context, login NodeLogin) error

const (
	verifyWithin = 4 * time.Second // the servers wait authorization.timeout of accounts.conf
	verifiers    = 64              // agents that are looked at at the same time
)

// vouch answers the server's questions about who connects, until the
// connection is closed. Several control planes share the questions.
func vouch(nc *nats.Conn, seed string, verify VerifyNode, readers *accountReaders) error {
	keys, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return domain.Errorf(domain.InvalidArgument, "the issuer's seed cannot be read: it must be an account seed, SA and 56 more characters")
	}
	public, err := keys.PublicKey()
	if err != nil || !nkeys.IsValidPublicAccountKey(public) {
		return domain.Errorf(domain.InvalidArgument, "the issuer's seed is none of an account: it must begin with SA")
	}
	places := make(chan struct{}, verifiers)
	_, err = nc.QueueSubscribe(calloutSubject, "anneal", func(m *nats.Msg) {
		question, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
		if err != nil {
			return // nobody who is entitled to an answer
		}
		if readers.concerns(question) {
			go readers.answer(m, question, keys) // it may take a while to open an account's mirrors
			return
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(context.Background(), verifyWithin)
			defer cancel()
			if answer, err := answer(ctx, question, keys, verify); err == nil {
				_ = m.Respond([]byte(answer))
			}
		}()
	})
	if err != nil {
		return fmt.Errorf("eventlog: vouching for nodes: %w", err)
	}
	return nc.Flush()
}

func answer(ctx context.Context, question *jwt.AuthorizationRequestClaims, keys nkeys.KeyPair, verify VerifyNode) (string, error) {
	response := jwt.NewAuthorizationResponseClaims(question.UserNkey)
	response.Audience = question.Server.ID
	login, err := loginOf(question)
	if err == nil && verify == nil {
		err = errors.New("no node is let in")
	}
	if err == nil {
		err = verify(ctx, login)
	}
	if err != nil {
		response.Error = domain.Printable(err.Error())
		return response.Encode(keys)
	}
	user := jwt.NewUserClaims(question.UserNkey)
	user.Name = sessionUser(login.Node, login.PublicKey)
	user.Audience = "AGENTS"
	user.Permissions = nodePermissions(login.Node)
	token, err := user.Encode(keys)
	if err != nil {
		return "", err
	}
	response.Jwt = token
	return response.Encode(keys)
}

// loginOf reads who connects. A key counts only with the signature, made with
// it, of the nonce that the server drew for this connection.
func loginOf(question *jwt.AuthorizationRequestClaims) (NodeLogin, error) {
	options := question.ConnectOptions
	login := NodeLogin{Node: options.Username, Token: options.Password}
	if !domain.ValidID(login.Node) {
		return login, errors.New("the connection names no node")
	}
	login.Session = NodeSession{Node: login.Node, Server: question.Server.ID, ID: question.ClientInformation.ID}
	if options.Nkey == "" {
		return login, nil
	}
	signature, err := base64.RawURLEncoding.DecodeString(options.SignedNonce)
	if err != nil || question.ClientInformation.Nonce == "" || !nkeys.IsValidPublicUserKey(options.Nkey) {
		return login, fmt.Errorf("node %s did not sign the server's nonce", login.Node)
	}
	public, err := nkeys.FromPublicKey(options.Nkey)
	if err != nil || public.Verify([]byte(question.ClientInformation.Nonce), signature) != nil {
		return login, fmt.Errorf("the signature of node %s is wrong", login.Node)
	}
	login.PublicKey, login.Session.PublicKey = options.Nkey, options.Nkey
	return login, nil
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

// AgentOptions are what a node connects with: its ID, its NKey, which signs the
// server's nonce, a join token, if it has one, and the prefix of the only
// inboxes it may use.
func AgentOptions(node, token string, key nkeys.KeyPair) []nats.Option {
	public, _ := key.PublicKey() // fails for a key that was wiped only, which cannot sign either
	return []nats.Option{
		nats.Name("anneal agent " + node),
		nats.UserInfo(node, token),
		nats.Nkey(public, key.Sign),
		nats.CustomInboxPrefix("_INBOX." + node),
		nats.Timeout(5 * time.Second),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // a node may be let in again
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
	}
}

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

// Limits of a node's response to one request: the number of NATS messages and the time. The number
// is high because each part of a streamed completion is a message.
const (
	responsesPerRequest = 1_000_000
	responsesFor        = time.Hour
)

// NewIssuer creates a key pair. With it, the control plane signs the user claims of nodes. The
// control plane keeps the seed; the NATS servers get public as ANNEAL_NATS_ISSUER in their
// configuration.
func NewIssuer() (seed, public string, err error) {
	keys, err := nkeys.CreateAccount()
	if err != nil {
		return "", "", fmt.Errorf("create the key pair of the NATS issuer: %w", err)
	}
	secret, err := keys.Seed()
	if err != nil {
		return "", "", fmt.Errorf("create the key pair of the NATS issuer: %w", err)
	}
	public, err = keys.PublicKey()
	return string(secret), public, err
}

// A NodeLogin holds the credentials with which a node's agent connects.
type NodeLogin struct {
	Node      string // ID of the node
	PublicKey string // NKey that signed the NATS server's nonce; "" when nothing was signed
	Token     string // join token of the node; "" when the agent sent none
	Session   NodeSession
}

// VerifyNode returns nil to accept the connection of a node, or an error to refuse it. The error is
// logged as the reason. VerifyNode must return within verifyWithin.
type VerifyNode func(ctx context.Context, login NodeLogin) error

// A nodeAdmission decides whether nodes may connect, and reports each login.
type nodeAdmission struct {
	verify VerifyNode  // decides which nodes may connect; nil refuses all
	logins func(Login) // called with each accepted or refused login; may be nil
}

const (
	// maximum time of verifying a node; less than authorization.timeout in accounts.conf, after
	// which the NATS servers refuse the connection
	verifyWithin = 4 * time.Second
	verifiers    = 64 // maximum number of logins that are verified concurrently
)

// authorize responds to authorization requests of the NATS servers (auth callout) until the
// connection nc is closed. The control planes of a cluster share the requests. seed is the issuer's
// seed, see NewIssuer.
func authorize(nc *nats.Conn, seed string, nodes nodeAdmission, readers *accountReaders) error {
	keys, err := nkeys.FromSeed([]byte(seed))
	if err != nil {
		return domain.Errorf(domain.InvalidArgument,
			"invalid issuer seed: must be an account seed, SA and 56 more characters")
	}
	public, err := keys.PublicKey()
	if err != nil || !nkeys.IsValidPublicAccountKey(public) {
		return domain.Errorf(domain.InvalidArgument, "invalid issuer seed: must be an account seed, which begins with SA")
	}
	slots := make(chan struct{}, verifiers)
	_, err = nc.QueueSubscribe(calloutSubject, "anneal", func(m *nats.Msg) {
		request, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
		if err != nil {
			return // the message is not a NATS server's authorization request
		}
		if readers.isReader(request) {
			go readers.answer(m, request, keys) // in a goroutine, because creating the mirrors of an account can take long
			return
		}
		slots <- struct{}{}
		go func() {
			defer func() { <-slots }()
			ctx, cancel := context.WithTimeout(context.Background(), verifyWithin)
			defer cancel()
			if answer, err := answer(ctx, request, keys, nodes); err == nil {
				_ = m.Respond([]byte(answer))
			}
		}()
	})
	if err != nil {
		return fmt.Errorf("subscribe to the authorization requests of the NATS servers: %w", err)
	}
	return nc.Flush()
}

func answer(ctx context.Context, request *jwt.AuthorizationRequestClaims, keys nkeys.KeyPair,
	nodes nodeAdmission) (string, error) {
	response := jwt.NewAuthorizationResponseClaims(request.UserNkey)
	response.Audience = request.Server.ID
	login, err := loginOf(request)
	if err == nil && nodes.verify == nil {
		err = errors.New("this server does not accept connections of nodes")
	}
	if err == nil {
		err = nodes.verify(ctx, login)
	}
	loggedIn(nodes.logins, request, false, err)
	if err != nil {
		response.Error = domain.Printable(err.Error())
		return response.Encode(keys)
	}
	user := jwt.NewUserClaims(request.UserNkey)
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

// loginOf returns the credentials in an authorization request. It returns an error when the request
// has an NKey that did not sign the nonce of this connection.
func loginOf(request *jwt.AuthorizationRequestClaims) (NodeLogin, error) {
	options := request.ConnectOptions
	login := NodeLogin{Node: options.Username, Token: options.Password}
	if !domain.ValidID(login.Node) {
		return login, errors.New("the connection has no node ID as its user name")
	}
	login.Session = NodeSession{Node: login.Node, Server: request.Server.ID, ID: request.ClientInformation.ID}
	if options.Nkey == "" {
		return login, nil
	}
	signature, err := base64.RawURLEncoding.DecodeString(options.SignedNonce)
	if err != nil || request.ClientInformation.Nonce == "" || !nkeys.IsValidPublicUserKey(options.Nkey) {
		return login, fmt.Errorf("node %s did not sign the server's nonce", login.Node)
	}
	public, err := nkeys.FromPublicKey(options.Nkey)
	if err != nil || public.Verify([]byte(request.ClientInformation.Nonce), signature) != nil {
		return login, fmt.Errorf("the signature of node %s is invalid", login.Node)
	}
	login.PublicKey, login.Session.PublicKey = options.Nkey, options.Nkey
	return login, nil
}

// gangs matches the subjects on which the nodes of a gang send encrypted frames to each other.
const gangs = "agents.*.gang.>"

// nodePermissions returns the NATS permissions of a node. It may publish reports and requests, and
// receive and answer requests, only on subjects with its own ID. It may also receive the encrypted
// frames of gangs.
func nodePermissions(node string) jwt.Permissions {
	return jwt.Permissions{
		Pub:  jwt.Permission{Allow: jwt.StringList{"agents." + node + ".>"}},
		Sub:  jwt.Permission{Allow: jwt.StringList{"work." + node + ".>", "_INBOX." + node + ".>", gangs}},
		Resp: &jwt.ResponsePermission{MaxMsgs: responsesPerRequest, Expires: responsesFor},
	}
}

// AgentOptions returns the NATS options with which a node's agent connects: the node's ID as user
// name, the NKey that signs the server's nonce, the join token unless it is "", and the prefix of
// the node's inboxes.
func AgentOptions(node, token string, key nkeys.KeyPair) []nats.Option {
	public, _ := key.PublicKey() // fails only for a wiped key, with which signing fails too
	return []nats.Option{
		nats.Name("anneal agent " + node),
		nats.UserInfo(node, token),
		nats.Nkey(public, key.Sign),
		nats.CustomInboxPrefix("_INBOX." + node),
		nats.Timeout(5 * time.Second),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // keep trying: a node that was refused may be accepted later
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
	}
}

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

// Limits of a node's response to one request: the number of messages and the time. The number is
// high because a streamed completion is sent as many messages.
const (
	responsesPerRequest = 1_000_000
	responsesFor        = time.Hour
)

// NewIssuer creates the key pair with which the control plane signs the user claims of nodes. The
// control plane keeps seed; public is the value of ANNEAL_NATS_ISSUER in the configuration of the
// NATS servers.
func NewIssuer() (seed, public string, err error) {
	keys, err := nkeys.CreateAccount()
	if err != nil {
		return "", "", fmt.Errorf("eventlog: create an issuer: %w", err)
	}
	secret, err := keys.Seed()
	if err != nil {
		return "", "", fmt.Errorf("eventlog: create an issuer: %w", err)
	}
	public, err = keys.PublicKey()
	return string(secret), public, err
}

// A NodeLogin has the credentials with which an agent connects.
type NodeLogin struct {
	Node      string // ID of the agent's node
	PublicKey string // public NKey with which the agent signed the server's nonce; "" without a signature
	Token     string // join token; may be ""
	Session   NodeSession
}

// VerifyNode returns nil to accept an agent, or an error with the reason to refuse it, which the
// server logs. It must return within verifyWithin.
type VerifyNode func(ctx context.Context, login NodeLogin) error

// A nodeAdmission decides whether agents may connect, and reports what it decides.
type nodeAdmission struct {
	verify VerifyNode  // nil refuses all nodes
	logins func(Login) // may be nil
}

const (
	verifyWithin = 4 * time.Second // less than authorization.timeout in accounts.conf, how long the servers wait
	verifiers    = 64              // maximum number of concurrent verifications
)

// authorize responds to the NATS servers' authorization requests (auth callout) until the
// connection nc is closed. The control planes of one cluster share the requests. seed is the seed
// of the issuer.
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
	places := make(chan struct{}, verifiers)
	_, err = nc.QueueSubscribe(calloutSubject, "anneal", func(m *nats.Msg) {
		request, err := jwt.DecodeAuthorizationRequestClaims(string(m.Data))
		if err != nil {
			return // the message is not from a NATS server
		}
		if readers.isReader(request) {
			go readers.answer(m, request, keys) // concurrently: opening an account's mirrors can take long
			return
		}
		places <- struct{}{}
		go func() {
			defer func() { <-places }()
			ctx, cancel := context.WithTimeout(context.Background(), verifyWithin)
			defer cancel()
			if answer, err := answer(ctx, request, keys, nodes); err == nil {
				_ = m.Respond([]byte(answer))
			}
		}()
	})
	if err != nil {
		return fmt.Errorf("eventlog: subscribe to authorization requests: %w", err)
	}
	return nc.Flush()
}

func answer(ctx context.Context, request *jwt.AuthorizationRequestClaims, keys nkeys.KeyPair,
	nodes nodeAdmission) (string, error) {
	response := jwt.NewAuthorizationResponseClaims(request.UserNkey)
	response.Audience = request.Server.ID
	login, err := loginOf(request)
	if err == nil && nodes.verify == nil {
		err = errors.New("this server does not accept connections from nodes")
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
// has a public key without a valid signature of the nonce that the server generated for this
// connection.
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

// gangs are the subjects on which nodes send frames to each other, sealed with the key of an attempt.
const gangs = "agents.*.gang.>"

// nodePermissions returns the permissions of a node: to publish reports and requests, to receive
// requests and to respond to them, only on the subjects with its own ID, and to receive the sealed
// frames of gangs.
func nodePermissions(node string) jwt.Permissions {
	return jwt.Permissions{
		Pub:  jwt.Permission{Allow: jwt.StringList{"agents." + node + ".>"}},
		Sub:  jwt.Permission{Allow: jwt.StringList{"work." + node + ".>", "_INBOX." + node + ".>", gangs}},
		Resp: &jwt.ResponsePermission{MaxMsgs: responsesPerRequest, Expires: responsesFor},
	}
}

// AgentOptions returns the options with which the agent of a node connects: the node's ID as the
// user, the NKey that signs the server's nonce, the join token unless it is "", and the prefix of
// the only inboxes that the node may use.
func AgentOptions(node, token string, key nkeys.KeyPair) []nats.Option {
	public, _ := key.PublicKey() // fails only for a wiped key, which cannot sign either
	return []nats.Option{
		nats.Name("anneal agent " + node),
		nats.UserInfo(node, token),
		nats.Nkey(public, key.Sign),
		nats.CustomInboxPrefix("_INBOX." + node),
		nats.Timeout(5 * time.Second),
		nats.MaxReconnects(-1),
		nats.RetryOnFailedConnect(true),
		nats.IgnoreAuthErrorAbort(), // keep reconnecting: a node that was refused may be accepted later
		nats.ReconnectWait(500 * time.Millisecond),
		nats.ReconnectJitter(500*time.Millisecond, time.Second),
	}
}

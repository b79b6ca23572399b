package domain

import "time"

// NodeAccess says who may speak for a node. An agent enrols once, with a join
// token, and leaves the public half of its NKey here; from then on it
// authenticates by signing with the key, and no token takes the node's name.
type NodeAccess struct {
	PublicKey  string    `json:"publicKey,omitempty"` // of the agent's NKey; "" before it has enrolled and after it was revoked
	JoinToken  string    `json:"joinToken,omitempty"` // ID of the token that it enrolled with
	EnrollTime time.Time `json:"enrollTime,omitzero"`
	RevokeTime time.Time `json:"revokeTime,omitzero"`
}

// Node states that access leads to, beside NodeReady and NodeGone.
const (
	NodeJoining = "ENROLLED" // enrolled, and not registered yet
	NodeRevoked = "REVOKED"
)

// IDs of what a node may have enrolled with instead of a token of its own.
const (
	LegacyJoinToken = "legacy" // a token of the form that did not expire
	LocalJoinToken  = "local"  // none: the worker in the control plane's own process
)

// publicKeySize is the length of an NKey's public half as text.
const publicKeySize = 56

// Absent reports whether the node has no agent that may work: it is lost, or its
// access was revoked.
func (n Node) Absent() bool { return n.State == NodeGone || n.State == NodeRevoked }

// Registered reports whether an agent has said what the node has, and may come
// back to it.
func (n Node) Registered() bool { return n.State != NodeJoining && n.State != NodeRevoked }

type NodeEnrolled struct {
	PublicKey string    `json:"publicKey"`
	JoinToken string    `json:"joinToken"`
	Time      time.Time `json:"time"`
}

func (e NodeEnrolled) Evolve(n *Node) {
	n.Access = NodeAccess{PublicKey: e.PublicKey, JoinToken: e.JoinToken, EnrollTime: e.Time}
	if !n.Exists() || !n.Registered() {
		n.State, n.Status = NodeJoining, StatusOf(nil)
	}
}

type NodeAccessRevoked struct {
	Reason string    `json:"reason"`
	Time   time.Time `json:"time"`
}

func (e NodeAccessRevoked) Evolve(n *Node) {
	n.State, n.Status, n.Allocations = NodeRevoked, Status{PermissionDenied.String(), e.Reason}, nil
	n.Access.PublicKey, n.Access.RevokeTime = "", e.Time
}

// EnrollNode records the key of a node's agent. It never replaces a key.
type EnrollNode struct {
	PublicKey string
	JoinToken string // its ID
}

func (c EnrollNode) Decide(n Node, now time.Time) (Event[Node], error) {
	var v Violations
	v.Require(len(c.PublicKey) == publicKeySize && c.PublicKey[0] == 'U', "publicKey", "must be the public NKey of a user: U and %d more characters", publicKeySize-1)
	v.Require(c.JoinToken != "" && len(c.JoinToken) <= MaxShortName, "joinToken", "must be the ID of a token")
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case n.Access.PublicKey == c.PublicKey:
		return nil, nil
	case n.Access.PublicKey != "":
		return nil, precondition("NODE_ENROLLED", "the node has enrolled with another key: give this agent an ID of its own, "+
			"or revoke the node first with `anneal node revoke`")
	case n.State == NodeRevoked && (c.JoinToken == LegacyJoinToken || c.JoinToken == n.Access.JoinToken):
		return nil, precondition("JOIN_TOKEN_REVOKED", "the node was revoked, and the token with it: make another with `anneal node token`")
	}
	return NodeEnrolled{c.PublicKey, c.JoinToken, now}, nil
}

// RevokeNode takes a node's access away: its key and the token that it enrolled
// with are refused from then on, and all that it did is placed elsewhere.
type RevokeNode struct{ Reason string }

func (c RevokeNode) Decide(n Node, now time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, gone("node")
	case n.State == NodeRevoked:
		return nil, nil
	}
	return NodeAccessRevoked{c.Reason, now}, nil
}

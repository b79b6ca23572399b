package domain

import "time"

// NodeAccess is the credential of a node's agent. An agent enrolls once, with a join token, and
// records the public half of its NKey here. From then on it authenticates by signing with the key,
// and no token can enroll another agent as this node.
type NodeAccess struct {
	// public half of the agent's NKey; "" before the agent enrolls and after it is revoked
	PublicKey  string    `json:"publicKey,omitempty"`
	JoinToken  string    `json:"joinToken,omitempty"` // ID of the token that the agent enrolled with
	EnrollTime time.Time `json:"enrollTime,omitzero"`
	RevokeTime time.Time `json:"revokeTime,omitzero"`
}

// Node states before registration and after revocation.
const (
	NodeJoining = "ENROLLED" // the agent has enrolled, and has not registered the node yet
	NodeRevoked = "REVOKED"
)

// Values of JoinToken for nodes that enrolled without a token of `anneal node token`.
const (
	LegacyJoinToken = "legacy" // the agent enrolled with a token of an earlier version, which has no ID and no expiry
	LocalJoinToken  = "local"  // the agent is the local worker, in the control plane's process, and needs no token
)

// publicKeySize is the length of the public half of an NKey in its text form.
const publicKeySize = 56

// Absent reports whether no agent can run on the node, because the node is LOST or its access is
// revoked.
func (n Node) Absent() bool { return n.State == NodeLostState || n.State == NodeRevoked }

// Registered reports whether an agent has registered the node, and its access is not revoked.
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

// EnrollNode records the public key of a node's agent. A recorded key is never replaced.
type EnrollNode struct {
	PublicKey string
	JoinToken string // ID of the join token that the agent presented
}

func (c EnrollNode) Decide(n Node, now time.Time) (Event[Node], error) {
	var v Violations
	v.Require(len(c.PublicKey) == publicKeySize && c.PublicKey[0] == 'U', "publicKey",
		"must be the public NKey of a user, which is U and %d more characters", publicKeySize-1)
	v.Require(c.JoinToken != "" && len(c.JoinToken) <= MaxShortName, "joinToken", "must be the ID of a join token")
	if err := v.Err(); err != nil {
		return nil, err
	}
	switch {
	case n.Access.PublicKey == c.PublicKey:
		return nil, nil
	case n.Access.PublicKey != "":
		return nil, precondition("NODE_ENROLLED",
			"the node has enrolled with another key: give this agent another --node-id, "+
				"or revoke the node first with `anneal node revoke`")
	case n.State == NodeRevoked && (c.JoinToken == LegacyJoinToken || c.JoinToken == n.Access.JoinToken):
		return nil, precondition("JOIN_TOKEN_REVOKED",
			"the node and its token were revoked: create another token with `anneal node token`")
	}
	return NodeEnrolled{c.PublicKey, c.JoinToken, now}, nil
}

// RevokeNode revokes a node's access. The server refuses the node's key and the token that it
// enrolled with, and the schedulers place its attempts and replicas on other nodes. A local worker
// cannot be revoked, because it could never enroll again. A revocation would not protect the server
// either: a program that can start the local worker can read the server's data directory.
type RevokeNode struct{ Reason string }

func (c RevokeNode) Decide(n Node, now time.Time) (Event[Node], error) {
	switch {
	case !n.Exists():
		return nil, notFound("node")
	case n.State == NodeRevoked:
		return nil, nil
	case n.Access.JoinToken == LocalJoinToken:
		return nil, precondition("LOCAL_NODE", "the node is the local worker of a server, which has no token that could "+
			"be revoked: start that server with --worker=false, and then delete the node with `anneal node delete`")
	}
	return NodeAccessRevoked{c.Reason, now}, nil
}

package domain

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"regexp"
)

// Only the operator may know the names of nodes. Messages that are stored, and other texts and
// fields of events, name a node by its resource name, accounts/system/nodes/ID, so that a NodeMask
// finds it. Messages that are not shown through a NodeMask, such as errors of requests and the logs of
// jobs, do not name nodes at all.

const (
	nodesPrefix = "accounts/" + System + "/nodes/"
	nodeID      = `[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?`
)

var (
	// namedNode matches the resource name of a node, together with the word before it in messages.
	namedNode = regexp.MustCompile(`(\bnode )?\b` + nodesPrefix + `(` + nodeID + `)`)
	// earlierNode matches the ID of a node in the messages of earlier versions, with the words that
	// follow it. moved is such a message that ends with the ID.
	earlierNode = regexp.MustCompile(`\bnode ` + nodeID + `( (?:was (?:lost|shut down|released|restarted)|` +
		`is being drained|has fewer devices|has none$|did not start the attempt|with another replica|runs without)\b)?`)
	movedToNode = regexp.MustCompile(`^moved to node ` + nodeID + `$`)
)

// A NodeMask replaces names of nodes in what accounts see. Key is a secret of the installation.
// Without it, all nodes have the same label.
type NodeMask struct{ Key []byte }

// Label returns an opaque text that stands for the node with the ID. It is always the same for a
// node, and nobody without the key can test a guess of the ID.
func (m NodeMask) Label(id string) string {
	if len(m.Key) == 0 {
		return "-"
	}
	mac := hmac.New(sha256.New, m.Key)
	mac.Write([]byte("anneal label of node " + id))
	return "node-" + hex.EncodeToString(mac.Sum(nil)[:6])
}

// Text returns a text in which each resource name of a node is replaced: "node NAME" by "a node",
// and a name without that word by the name that has the label instead of the ID.
func (m NodeMask) Text(text string) string {
	return namedNode.ReplaceAllStringFunc(text, func(found string) string {
		part := namedNode.FindStringSubmatch(found)
		if part[1] != "" {
			return "a node"
		}
		return nodesPrefix + m.Label(part[2])
	})
}

// HideNodes returns a message in which "a node" replaces each node that the message names. It also
// knows the messages of earlier versions, which have the ID of the node only.
func HideNodes(message string) string {
	message = movedToNode.ReplaceAllString(message, "moved to a node")
	message = earlierNode.ReplaceAllStringFunc(message, func(found string) string {
		if after := earlierNode.FindStringSubmatch(found)[1]; after != "" {
			return "a node" + after
		}
		return found
	})
	return NodeMask{}.Text(message)
}

// HideNodes returns the status with a message that does not name nodes.
func (s Status) HideNodes() Status {
	s.Message = HideNodes(s.Message)
	return s
}

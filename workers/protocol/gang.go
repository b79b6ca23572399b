package protocol

import "fmt"

// A Gang describes the nodes that compute an attempt together, as one of them sees it. They send
// each other encrypted frames on GangSubject.
type Gang struct {
	Rank  int      `json:"rank"`  // rank of this node; 0 is the leader, which reports for the attempt
	Nodes []string `json:"nodes"` // IDs of the nodes by rank
	Key   []byte   `json:"key"`   // key of 32 bytes that encrypts the frames of this attempt
	ID    string   `json:"id"`    // ID of the attempt in the NATS subjects of its gang
}

// GangSubject returns the subject on which the node with the ID sender sends frames to the gang
// member with the given rank. Every node may subscribe to it, but only the members of the gang have
// the key.
func GangSubject(sender, gang string, rank int) string {
	return fmt.Sprintf("agents.%s.gang.%s.%d", sender, gang, rank)
}

// GangSubjects matches the subjects of all gangs.
const GangSubjects = "agents.*.gang.>"

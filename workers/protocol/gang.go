package protocol

import "fmt"

// A Gang is the place of a node among the nodes of an attempt. They send each other sealed frames:
// see GangSubject.
type Gang struct {
	Rank  int      `json:"rank"`  // 0 is the leader, which reports for the attempt
	Nodes []string `json:"nodes"` // IDs, by rank
	Key   []byte   `json:"key"`   // 32 bytes, seals the frames of this attempt
	ID    string   `json:"id"`    // names the attempt in subjects
}

// GangSubject returns the subject on which a node sends the frames of a gang to the node of a rank.
// Every node may subscribe to it: only the members of the gang have the key.
func GangSubject(from, gang string, to int) string {
	return fmt.Sprintf("agents.%s.gang.%s.%d", from, gang, to)
}

// GangSubjects matches the subjects of all gangs of all nodes.
const GangSubjects = "agents.*.gang.>"

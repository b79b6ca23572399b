package coordinator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"

	"anneal/domain"
	"anneal/projections"
	"anneal/workers/protocol"
)

// gangOf returns the place of a node in the current attempt of a job; nil for an attempt on one node.
// The nodes are those that compute: the leader and the nodes of the attempt that can train together
// with others. The key depends on the attempt only, so every control plane returns the same one.
func (a *assigner) gangOf(v *projections.View, j job, node domain.Name) *protocol.Gang {
	members := membersOf(v, j)
	if len(members) < 2 || len(a.gangSecret) == 0 {
		return nil
	}
	id := fmt.Sprintf("gang %s %s", domain.AllocationID(j.Name, j.Life.Attempt), j.Event)
	mac := hmac.New(sha256.New, a.gangSecret)
	mac.Write([]byte(id))
	sum := sha256.Sum256([]byte(id))
	g := &protocol.Gang{Rank: slices.Index(members, node), Key: mac.Sum(nil), ID: hex.EncodeToString(sum[:16])}
	for _, member := range members {
		g.Nodes = append(g.Nodes, member.ID())
	}
	return g
}

// membersOf returns the nodes that compute the current attempt of a job, the leader first.
func membersOf(v *projections.View, j job) (members []domain.Name) {
	for i, name := range j.Life.Nodes {
		row, ok := v.Nodes.Get(name)
		// A node without engines is shutting down; the nodes of an attempt must not change.
		able := ok && (len(row.State.Engines) == 0 || slices.Contains(row.State.Engines, domain.GangAbility))
		switch {
		case i == 0:
			if members = append(members, name); !able {
				return members
			}
		case able:
			members = append(members, name)
		}
	}
	return members
}

// helperOf returns the assignment of a node that does not lead its gang. It needs no rows, and no
// secrets of an evaluator.
func helperOf(t protocol.TrainAssignment) protocol.TrainAssignment {
	t.Data, t.Eval, t.Evaluator, t.LogURL, t.EarlierLogURL = protocol.FileSet{}, nil, nil, "", ""
	return t
}

// helps reports whether a node of a gang helps its first node, and scores nothing.
func helps(g *protocol.Gang) bool { return g != nil && g.Rank > 0 }

// A runs function reports whether a node may act for an attempt of a job.
type runs func(v *projections.View, j job, node domain.Name, attempt int) bool

// runsOn reports whether the attempt is the job's current one and the node computes for it.
func runsOn(v *projections.View, j job, node domain.Name, attempt int) bool {
	return attempt == j.Life.Attempt && j.Life.Active() && slices.Contains(membersOf(v, j), node)
}

func leads(_ *projections.View, j job, node domain.Name, attempt int) bool {
	return leadBy(j, node, attempt)
}

// reporter returns which nodes may send a report: every node of an attempt that it has failed or
// stopped, and the leader all others.
func reporter(kind string) runs {
	if kind == protocol.ReportFailed || kind == protocol.ReportStopped {
		return runsOn
	}
	return leads
}

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

// gangOf returns the Gang of the current attempt of a job as the given node sees it; nil for an
// attempt on one node. Its members are the first node of the attempt, which leads, and the others
// whose engine can train with other nodes. The encryption key depends only on the attempt, so every
// control plane returns the same.
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

// membersOf returns the nodes that compute the current attempt of a job, the leader first. The
// scheduler chooses only nodes with the same gang ability for an attempt, but an earlier version of
// it did not.
func membersOf(v *projections.View, j job) (members []domain.Name) {
	leader := "" // gang ability of the leader
	for i, name := range j.Life.Nodes {
		row, ok := v.Nodes.Get(name)
		ability := domain.GangAbilityOf(row.State.Engines)
		if i == 0 {
			leader = ability
		}
		// The engines of a node that is shutting down are empty; it stays a member, because the members
		// of an attempt must not change.
		leaving := ok && len(row.State.Engines) == 0
		able := leaving || ability != "" && (leader == "" || ability == leader)
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

// helperOf returns the assignment for a node that does not lead its gang: without datasets,
// evaluator and log, which only the leader needs.
func helperOf(t protocol.TrainAssignment) protocol.TrainAssignment {
	t.Data, t.Eval, t.Evaluator, t.LogURL, t.EarlierLogURL = protocol.FileSet{}, nil, nil, "", ""
	return t
}

// helps reports whether the node of g computes for another node, the leader of the gang.
func helps(g *protocol.Gang) bool { return g != nil && g.Rank > 0 }

// A runs function reports whether a node may send a report or request for an attempt of a job.
type runs func(v *projections.View, j job, node domain.Name, attempt int) bool

// runsOn reports whether attempt is the current attempt of the job and runs on the node.
func runsOn(v *projections.View, j job, node domain.Name, attempt int) bool {
	return attempt == j.Life.Attempt && j.Life.Active() && slices.Contains(membersOf(v, j), node)
}

func leads(_ *projections.View, j job, node domain.Name, attempt int) bool {
	return leadBy(j, node, attempt)
}

// reporter returns which nodes may send a kind of report. Every node of an attempt may report that
// it failed or stopped; only the leader may send other reports.
func reporter(kind string) runs {
	if kind == protocol.ReportFailed || kind == protocol.ReportStopped {
		return runsOn
	}
	return leads
}

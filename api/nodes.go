package api

import (
	"time"

	"anneal/domain"
	"anneal/projections"
)

// Node is a node on the wire.
type Node struct {
	Name string `json:"name" api:"output"`
	domain.NodeSpec
	CreateTime  *time.Time          `json:"createTime,omitempty" api:"output"`
	UpdateTime  *time.Time          `json:"updateTime,omitempty" api:"output"`
	SeenTime    *time.Time          `json:"seenTime,omitempty" api:"output"`
	State       string              `json:"state" api:"output"`
	Status      domain.Status       `json:"status" api:"output"`
	Used        domain.Resources    `json:"used" api:"output"`
	Allocations []domain.Allocation `json:"allocations" api:"output"`
}

// seen is when a node was last heard. Of one that is lost it is what was known
// when it was lost, since the pulse of this process may be younger.
func seen(v *projections.View, row *projections.Row[domain.Node]) time.Time {
	if row.State.State == domain.NodeGone && !row.State.Seen.IsZero() {
		return row.State.Seen
	}
	return v.Pulse.Seen(row.Name)
}

// nodes belong to the account system, so only the operator's keys reach them.
var nodes = &resource[domain.Node, Node]{
	kind: domain.Nodes, noun: "node", reads: toRead, writes: toOperate,
	fields: storedFieldsOf[domain.Node, Node]("name", "pool", "capacity", "engines", "version", "createTime", "updateTime", "state", "status"),
	render: func(v *projections.View, row *projections.Row[domain.Node], out *Node) {
		*out = Node{Name: string(row.Name), NodeSpec: row.State.NodeSpec, CreateTime: stampOf(&row.CreateTime), UpdateTime: stampOf(&row.UpdateTime),
			SeenTime: stamp(seen(v, row)), State: row.State.State, Status: row.State.Status, Used: row.State.Used(),
			Allocations: row.State.Allocated()}
		if out.Allocations == nil {
			out.Allocations = []domain.Allocation{}
		}
	},
	remove: func(*call, *projections.Row[domain.Node], *params) (domain.Command[domain.Node], error) {
		return domain.RemoveNode{}, nil
	},
}

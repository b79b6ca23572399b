package rest

import (
	"cmp"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/api/wire"
	"anneal/domain"
	"anneal/projections"
	"anneal/projections/live"
)

// Node is the wire type of a worker node.
type Node struct {
	Name string `json:"name" api:"output"`
	domain.NodeSpec
	CreateTime  *time.Time          `json:"createTime,omitempty" api:"output"`
	UpdateTime  *time.Time          `json:"updateTime,omitempty" api:"output"`
	SeenTime    *time.Time          `json:"seenTime,omitempty" api:"output"`
	State       string              `json:"state" api:"output"`
	Status      domain.Status       `json:"status" api:"output"`
	Scheduling  string              `json:"scheduling" api:"output"`
	Cordon      *domain.NodeCordon  `json:"cordon,omitempty" api:"output"`
	Taints      []domain.Taint      `json:"taints,omitempty" api:"output"`
	Devices     []live.Device       `json:"devices,omitempty" api:"output"`
	Used        domain.Resources    `json:"used" api:"output"`
	Allocations []domain.Allocation `json:"allocations" api:"output"`
	PublicKey   string              `json:"publicKey" api:"output"`
	EnrollTime  *time.Time          `json:"enrollTime,omitempty" api:"output"`
	RevokeTime  *time.Time          `json:"revokeTime,omitempty" api:"output"`
}

// seen returns the time of a node's last heartbeat. For a lost node it returns the time in the log,
// because this server may have started after the last heartbeat.
func seen(v *projections.View, row *projections.Row[domain.Node]) time.Time {
	if row.State.Absent() && !row.State.Seen.IsZero() {
		return row.State.Seen
	}
	return v.Live.Seen(row.Name)
}

// isPresent reports whether responses show the live status of a node.
func isPresent(row *projections.Row[domain.Node]) bool {
	return !row.State.Absent() || row.State.Seen.IsZero()
}

// nodes declares the operations of the kind node. Nodes belong to the account system, which only
// the operator may access.
var nodes = &resource[domain.Node, Node]{
	kind: domain.Nodes, noun: "node", reads: request.Read, writes: request.Operate,
	fields: storedFieldsOf[domain.Node, Node]("name", "pool", "capacity", "engines", "version", "createTime", "updateTime",
		"state", "status"),
	dependent: map[string]func(*projections.Row[domain.Node]) bool{"seenTime": isPresent, "devices": isPresent},
	render: func(v *projections.View, row *projections.Row[domain.Node], out *Node) {
		*out = Node{Name: string(row.Name), NodeSpec: row.State.NodeSpec, CreateTime: wire.TimestampOf(&row.CreateTime),
			UpdateTime: wire.TimestampOf(&row.UpdateTime),
			SeenTime:   wire.Timestamp(seen(v, row)), State: row.State.State, Status: row.State.Status, Used: row.State.Used(),
			Scheduling: row.State.Scheduling(), Cordon: row.State.Cordon,
			Taints:      row.State.Taints,
			Allocations: row.State.Allocated(), PublicKey: row.State.Access.PublicKey,
			EnrollTime: wire.Timestamp(row.State.Access.EnrollTime), RevokeTime: wire.Timestamp(row.State.Access.RevokeTime)}
		if !row.State.Absent() { // the last report of an absent node is outdated
			out.Devices = v.Live.Devices(row.Name)
		}
		if out.Allocations == nil {
			out.Allocations = []domain.Allocation{}
		}
		if out.Engines == nil { // a node that has enrolled but not registered has no engines
			out.Engines = []string{}
		}
	},
	remove: func(*call, *projections.Row[domain.Node], *request.Params) (domain.Command[domain.Node], error) {
		return domain.RemoveNode{}, nil
	},
}

var _ = register(nodes.operations, nodeOperations, nodeSchedulingOperations)

func nodeOperations(s *Service) []request.Operation {
	return []request.Operation{
		{ID: "revokeNode", Method: "POST", Path: "/v1/accounts/{account}/nodes/{id}:revoke", Tag: "nodes",
			Summary: "Revoke a node's access", Permission: request.Operate,
			Description: "The key and the join token of the node become invalid, its connections are closed, and its jobs " +
				"and replicas move to other nodes. To enroll a node with this name again, create another join token.",
			Body: reflect.TypeFor[revocation](), BodyOptional: true, Response: reflect.TypeFor[Node](),
			Handle: s.handle(revokeNode)},
	}
}

type revocation struct {
	Reason string `json:"reason"`
}

func revokeNode(c *call) (any, error) {
	p := c.Params()
	var body revocation
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkReason(p, body.Reason)
	return changeNode(c, p, domain.RevokeNode{Reason: cmp.Or(body.Reason, "revoked by the operator")})
}

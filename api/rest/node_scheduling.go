package rest

import (
	"cmp"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/domain"
)

func nodeSchedulingOperations(s *Service) []request.Operation {
	const one = "/v1/accounts/{account}/nodes/{id}"
	return []request.Operation{
		{ID: "cordonNode", Method: "POST", Path: one + ":cordon", Tag: "nodes",
			Summary: "Close a node for new work", Permission: request.Operate,
			Description: "The node gets no new jobs and replicas until it is uncordoned, even after a restart of its agent. " +
				"The jobs and replicas on the node continue.",
			Body: reflect.TypeFor[cordon](), BodyOptional: true, Response: reflect.TypeFor[Node](),
			Handle: s.handle(cordonNode)},
		{ID: "uncordonNode", Method: "POST", Path: one + ":uncordon", Tag: "nodes",
			Summary: "Open a node for new work", Permission: request.Operate,
			Description: "Ends a cordon or a drain. Jobs and replicas that a drain has stopped or moved do not return.",
			Body:        request.NoBody, BodyOptional: true, Response: reflect.TypeFor[Node](),
			Handle: s.handle(uncordonNode)},
		{ID: "drainNode", Method: "POST", Path: one + ":drain", Tag: "nodes",
			Summary: "Move the jobs and replicas of a node to other nodes", Permission: request.Operate,
			Description: "Cordons the node. Its jobs save a checkpoint and are queued again; this does not count as a " +
				"failure. Each replica stops when its replacement on another node is ready. Jobs and replicas that are still " +
				"on the node at the deadline are stopped. The node is DRAINED when nothing runs on it.",
			Body: reflect.TypeFor[drain](), BodyOptional: true, Response: reflect.TypeFor[Node](),
			Handle: s.handle(drainNode)},
	}
}

type cordon struct {
	Reason string `json:"reason"`
}

type drain struct {
	Reason   string `json:"reason"`
	Deadline string `json:"deadline"`
}

const byOperator = "requested by the operator"

func cordonNode(c *call) (any, error) {
	p, body := c.Params(), cordon{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkReason(p, body.Reason)
	return changeNode(c, p, domain.CordonNode{Reason: cmp.Or(body.Reason, byOperator)})
}

func uncordonNode(c *call) (any, error) {
	p := c.Params()
	if err := p.ReadVerb(&struct{}{}); err != nil {
		return nil, err
	}
	return changeNode(c, p, domain.UncordonNode{})
}

func drainNode(c *call) (any, error) {
	p, body := c.Params(), drain{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	checkReason(p, body.Reason)
	within := domain.DefaultDrain
	if body.Deadline != "" {
		var err error
		within, err = time.ParseDuration(body.Deadline)
		p.Violations.Require(err == nil, "deadline", `must be a duration from now such as "600s", not %q`, body.Deadline)
	}
	return changeNode(c, p, domain.DrainNode{Reason: cmp.Or(body.Reason, byOperator), Within: within})
}

func checkReason(p *request.Params, reason string) {
	p.Violations.Require(len(reason) <= domain.MaxDescription, "reason", "must have at most %d bytes",
		domain.MaxDescription)
}

// changeNode records a command on the node that the path names, and responds with the node.
func changeNode(c *call, p *request.Params, command domain.Command[domain.Node]) (any, error) {
	if err := p.Err(); err != nil {
		return nil, err
	}
	row, err := nodes.row(c)
	if err != nil {
		return nil, err
	}
	result, err := c.Do(domain.Intend(domain.Nodes, row.Name, command))
	if err != nil {
		return nil, err
	}
	return nodes.reply(c, result)
}

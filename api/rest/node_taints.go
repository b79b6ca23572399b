package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

var _ = register(nodePolicyOperations)

func nodePolicyOperations(s *Service) []request.Operation {
	const one = "/v1/accounts/{account}/nodes/{id}"
	return []request.Operation{
		{ID: "taintNode", Method: "POST", Path: one + ":taint", Tag: "nodes",
			Summary: "Keep work off a node", Permission: request.Operate,
			Description: "The node gets new jobs and replicas only of accounts that tolerate the taint. The jobs and " +
				"replicas on the node continue. The taint replaces a taint of the node with the same key.",
			Body: reflect.TypeFor[domain.Taint](), Response: reflect.TypeFor[Node](), Handle: s.handle(taintNode)},
		{ID: "untaintNode", Method: "POST", Path: one + ":untaint", Tag: "nodes",
			Summary: "Remove a taint from a node", Permission: request.Operate,
			Body: reflect.TypeFor[untaint](), Response: reflect.TypeFor[Node](), Handle: s.handle(untaintNode)},
		{ID: "setAccountNodes", Method: "POST", Path: "/v1/accounts/{account}:setNodes", Tag: "accounts",
			Summary: "Set which nodes an account may use", Gate: request.ByOperator,
			Description: "Replaces the account's policy. New jobs and replicas of the account are placed only on nodes that " +
				"have all labels in nodeSelector, and all of whose taints are in tolerations. Running jobs and replicas stay " +
				"where they are.",
			Body: reflect.TypeFor[accountNodes](), BodyOptional: true, Response: reflect.TypeFor[Account](),
			Handle: s.handle(setAccountNodes)},
	}
}

type untaint struct {
	Key string `json:"key"`
}

type accountNodes struct {
	NodeSelector map[string]string `json:"nodeSelector"`
	Tolerations  []domain.Taint    `json:"tolerations"`
}

func taintNode(c *call) (any, error) {
	p, body := c.Params(), domain.Taint{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	if body.Effect == "" {
		body.Effect = domain.NoSchedule
	}
	return changeNode(c, p, domain.TaintNode{Taint: body})
}

func untaintNode(c *call) (any, error) {
	p, body := c.Params(), untaint{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	return changeNode(c, p, domain.UntaintNode{Key: body.Key})
}

func setAccountNodes(c *call) (any, error) {
	p, body := c.Params(), accountNodes{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	for i := range body.Tolerations {
		if body.Tolerations[i].Effect == "" {
			body.Tolerations[i].Effect = domain.NoSchedule
		}
	}
	return changeAccount(c, p, domain.SetAccountNodes{
		NodePolicy: domain.NodePolicy{Selector: body.NodeSelector, Tolerations: body.Tolerations}})
}

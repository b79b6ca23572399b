package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

var _ = register(queueWeightOperations)

func queueWeightOperations(s *Service) []request.Operation {
	return []request.Operation{
		{ID: "setQueueWeight", Method: "POST", Path: "/v1/accounts/{account}:setQueueWeight", Tag: "accounts",
			Summary: "Set the share of the cluster for an account's jobs", Gate: request.ByOperator,
			Description: "Accounts with waiting or running jobs share the cluster in proportion to their weights.",
			Body:        reflect.TypeFor[queueWeight](), Response: reflect.TypeFor[Account](), Handle: s.handle(setQueueWeight)},
	}
}

type queueWeight struct {
	QueueWeight int `json:"queueWeight"`
}

func setQueueWeight(c *call) (any, error) {
	p, body := c.Params(), queueWeight{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	warnZeros(c.Call, p, "", nil, nil)
	return changeAccount(c, p, domain.SetQueueWeight{QueueWeight: body.QueueWeight})
}

package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

var _ = register(jobAcceleratorsOperations)

func jobAcceleratorsOperations(s *Service) []request.Operation {
	return []request.Operation{
		{ID: "setJobAccelerators", Method: "POST", Path: "/v1/accounts/{account}:setJobAccelerators", Tag: "accounts",
			Summary: "Set how many accelerators an account's jobs get", Gate: request.ByOperator,
			Description: "Replaces the table of the account; a table without rows is removed. The table of the account " +
				"system applies to all accounts without a table. The first row that applies to a job decides: rows with a " +
				"method come before rows without, and rows with a smaller maxParameterCount before those with a larger one. A " +
				"job to which no row applies gets as many accelerators as its estimated memory requires. Running attempts keep " +
				"their accelerators.",
			Body: reflect.TypeFor[jobAccelerators](), BodyOptional: true, Response: reflect.TypeFor[Account](),
			Handle: s.handle(setJobAccelerators)},
	}
}

type jobAccelerators struct {
	Rows domain.JobAccelerators `json:"rows"`
}

func setJobAccelerators(c *call) (any, error) {
	p, body := c.Params(), jobAccelerators{}
	if err := p.ReadVerb(&body); err != nil {
		return nil, err
	}
	return changeAccount(c, p, domain.SetJobAccelerators{Rows: body.Rows})
}

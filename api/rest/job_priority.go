package rest

import (
	"reflect"

	"anneal/api/request"
	"anneal/domain"
)

// jobPriority is the request body of the operation that sets the priority of a job.
type jobPriority struct {
	Priority string `json:"priority"`
}

// priorityOperation returns the operation that sets the priority of jobs of the kind res.
func priorityOperation[S domain.State, R any](s *Service, res *resource[S, R]) request.Operation {
	prioritize := func(c *call) (any, error) {
		p, body := c.Params(), jobPriority{}
		if err := p.ReadVerb(&body); err != nil {
			return nil, err
		}
		if err := p.Err(); err != nil {
			return nil, err
		}
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		result, err := c.Do(domain.IntendJob(row.Name, domain.SetJobPriority{Priority: domain.JobPriority(body.Priority)}))
		if err != nil {
			return nil, err
		}
		return res.reply(c, result)
	}
	return request.Operation{ID: "set" + res.singular() + "Priority", Method: "POST",
		Path:    request.CollectionPath + res.kind.Collection + "/{id}:setPriority",
		Summary: "Set the priority of " + withArticle(res.noun), Permission: request.Write,
		Description: "Waiting jobs of an account start in the order of their priorities. The order between accounts does " +
			"not change.",
		Body: reflect.TypeFor[jobPriority](), Required: []string{"priority"}, Response: reflect.TypeFor[R](),
		Handle: s.handle(prioritize)}
}

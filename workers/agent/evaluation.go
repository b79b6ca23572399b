package agent

import (
	"cmp"
	"fmt"

	"anneal/domain"
	"anneal/engines"
)

// openEvaluation brings the code that scores answers here and makes it ready;
// nil when the order has none. closed lets go of it; it is never nil.
func (t *attempt) openEvaluation() (_ engines.Evaluation, closed func(), err error) {
	closed = func() {}
	asked := t.order.Evaluator
	if asked == nil {
		return nil, closed, nil
	}
	engine := t.agent.options.Engine
	if engine.Scorer == nil {
		return nil, closed, domain.Errorf(domain.Unavailable, "the node cannot score: %s", cmp.Or(engine.Why["score"], "its engine has no scorer"))
	}
	dir, free, err := t.agent.cache.acquire(t.work, asked.Code)
	if err != nil {
		return nil, closed, fmt.Errorf("evaluator: %w", err)
	}
	code := engines.EvaluatorCode{Dir: dir, EntryFile: asked.EntryFile, EntryFunc: asked.EntryFunc, Env: asked.Env, Parallelism: t.cores()}
	if how := t.order.Settings.Rollouts; how != nil && how.MaxConcurrentEvaluations > 0 {
		code.Parallelism = how.MaxConcurrentEvaluations
	}
	evaluation, err := engine.Scorer.Open(t.work, code)
	if err != nil {
		free()
		return nil, closed, fmt.Errorf("evaluator: %w", err)
	}
	return evaluation, func() {
		if err := evaluation.Close(); err != nil {
			t.log.Warn("an evaluation could not be closed", "error", err)
		}
		free()
	}, nil
}

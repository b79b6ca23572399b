package agent

import (
	"cmp"
	"fmt"

	"anneal/domain"
	"anneal/engines"
)

// openEvaluation downloads the evaluator's code and starts it. It returns nil when the attempt has
// no evaluator. closeAll stops the evaluator and releases its files; it is never nil.
func (t *attempt) openEvaluation() (_ engines.Evaluation, closeAll func(), err error) {
	closeAll = func() {}
	evaluator := t.assignment.Evaluator
	if evaluator == nil {
		return nil, closeAll, nil
	}
	engine := t.agent.options.Engine
	if engine.Scorer == nil {
		return nil, closeAll, domain.Errorf(domain.Unavailable, "the node cannot score completions: %s",
			cmp.Or(engine.Missing["score"], fmt.Sprintf("the engine %s cannot score completions", engine.Name)))
	}
	dir, release, err := t.agent.cache.acquire(t.work, evaluator.Code)
	if err != nil {
		return nil, closeAll, fmt.Errorf("evaluator: %w", err)
	}
	code := engines.EvaluatorCode{Dir: dir, EntryFile: evaluator.EntryFile, EntryFunc: evaluator.EntryFunc,
		Env: evaluator.Env, Parallelism: t.cores()}
	if r := t.assignment.Settings.Rollouts; r != nil && r.MaxConcurrentEvaluations > 0 {
		code.Parallelism = r.MaxConcurrentEvaluations
	}
	evaluation, err := engine.Scorer.Open(t.work, code)
	if err != nil {
		release()
		return nil, closeAll, fmt.Errorf("evaluator: %w", err)
	}
	return evaluation, func() {
		if err := evaluation.Close(); err != nil {
			t.log.Warn("cannot stop the evaluator of an attempt", "error", err)
		}
		release()
	}, nil
}

package agent

import (
	"context"
	"time"

	"anneal/domain"
	"anneal/engines"
	"anneal/tracing"
	"anneal/workers/protocol"
)

// startAttemptSpan starts the span of an attempt, in the trace of its assignment.
func startAttemptSpan(life context.Context, assignment protocol.TrainAssignment) (context.Context, tracing.Span) {
	life, span := tracing.Start(life, assignment.Trace, tracing.Consumer, "attempt")
	span.Text("anneal.resource", string(assignment.Job))
	span.Int("anneal.attempt", int64(assignment.Attempt))
	span.Text("anneal.method", assignment.Method)
	span.Int("anneal.step", int64(assignment.ResumeStep))
	return life, span
}

// endSpan ends the span of an attempt, and counts the attempt in the metrics.
func endSpan(t *attempt, err error) {
	result := outcomeOf(err)
	if err != nil && t.work.Err() != nil {
		result = "interrupted"
	}
	t.agent.meters.attempt(result)
	t.span.End(err)
}

// trainInSpan runs the trainer in a span of its own.
func trainInSpan(t *attempt, req engines.TrainRequest) (engines.TrainResult, error) {
	ctx, span := tracing.Start(t.work, domain.Trace{}, tracing.Client, "train")
	span.Text("anneal.engine", t.agent.options.Engine.Name)
	result, err := t.agent.options.Engine.Trainer.Train(ctx, req, watcher{t})
	span.End(err)
	return result, err
}

// startReplicaSpan starts the span of starting a replica, in the trace of its assignment.
func startReplicaSpan(life context.Context, assignment protocol.ServeAssignment) (context.Context, tracing.Span) {
	life, span := tracing.Start(life, assignment.Trace, tracing.Consumer, "start replica")
	span.Text("anneal.resource", string(assignment.Deployment))
	span.Text("anneal.replica", assignment.Replica)
	return life, span
}

// loadInSpan calls loadModel in a span of its own, and measures the time of the load.
func (r *replica) loadInSpan(ctx context.Context, files engines.ModelFiles) (loaded, error) {
	began := time.Now()
	ctx, span := tracing.Start(ctx, domain.Trace{}, tracing.Client, "load model")
	span.Text("anneal.engine", r.agent.options.Engine.Name)
	got, err := r.loadModel(ctx, files)
	span.End(err)
	r.agent.meters.load(time.Since(began), err)
	return got, err
}

// downloadInSpan downloads a file set in a span of its own, and measures the download.
func (c *cache) downloadInSpan(ctx context.Context, files protocol.FileSet, dir string) error {
	ctx, span := tracing.Start(ctx, domain.Trace{}, tracing.Client, "download")
	span.Int("anneal.files", int64(len(files.Files)))
	span.Int("anneal.bytes", files.Size())
	err := c.files.download(ctx, files, dir)
	span.End(err)
	c.meters.downloaded(files.Size(), err)
	return err
}

// serveInSpan serves a request to a replica in a span of its own, in the trace of the request.
func (s *stream[Request, Chunk, Total]) serveInSpan(ctx context.Context, r *replica, request Request,
	emit func(Chunk) error) (Total, error) {
	ctx, span := tracing.Start(ctx, engines.TraceOf(ctx), tracing.Server, "serve request")
	span.Text("anneal.deployment", string(r.assignment.Deployment))
	span.Text("anneal.replica", r.assignment.Replica)
	total, err := s.do(r, ctx, request, emit)
	span.End(err)
	return total, err
}

// callEngine calls the engine for one request in a span of its own, and measures the call.
func callEngine[Total any](ctx context.Context, r *replica, call func(context.Context) (Total, error)) (Total, error) {
	began := time.Now()
	ctx, span := tracing.Start(ctx, domain.Trace{}, tracing.Client, "engine")
	total, err := call(ctx)
	usage, _ := any(total).(engines.Usage)
	if span.Recording() {
		span.Text("anneal.engine", r.agent.options.Engine.Name)
		span.Int("gen_ai.usage.input_tokens", int64(usage.PromptTokens))
		span.Int("gen_ai.usage.output_tokens", int64(usage.CompletionTokens))
		span.End(err)
	}
	r.agent.meters.request(r.assignment.Deployment, time.Since(began), usage, err)
	return total, err
}

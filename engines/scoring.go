package engines

import "context"

// A Scorer runs users' evaluators, apart from everything else on the node.
type Scorer interface {
	// Open makes an evaluator's code ready. InvalidArgument and
	// FailedPrecondition say that the code never will be; Unavailable says what
	// the node lacks to run any.
	Open(ctx context.Context, code EvaluatorCode) (Evaluation, error)
}

// An EvaluatorCode is a built revision of an evaluator, on this node's disk.
type EvaluatorCode struct {
	Dir       string            // holds the files of the revision
	EntryFile string            // below Dir
	EntryFunc string            // in EntryFile
	Env       map[string]string // the secrets that the evaluator names, by their keyNames
	// Parallelism is the most rows that are scored at one time, which cores bound
	// too; 0 is one.
	Parallelism int
}

// An Evaluation is an evaluator at work. It is safe for concurrent use.
type Evaluation interface {
	// Score judges rows, in their order. A row is what the evaluator's function
	// is given by name: messages, the last of which is the answer that is
	// judged, and whatever else the row of the dataset has. That the code fails
	// on a row is an invalid score; an error says that nothing can be scored.
	Score(ctx context.Context, rows []map[string]any) ([]Score, error)
	// Close ends all processes of the evaluation.
	Close() error
}

// A Score is an evaluator's answer for one row. An exception, a time-out or a
// value outside 0..1 is an invalid score with its reason.
type Score struct {
	Value   float64
	Valid   bool
	Reason  string
	Metrics map[string]float64
	Stdout  string // what the code printed meanwhile, cut at a limit
	Stderr  string
}

// A Builder finds out whether code can score, before any job depends on it.
type Builder interface {
	// Build compiles the code, looks for what it requires, imports its entry
	// file and calls its function once. The log says what was done and printed.
	// InvalidArgument says what is wrong with the code; Unavailable says what
	// the machine lacks to find out.
	Build(ctx context.Context, code EvaluatorCode, requirements string) (log string, err error)
}

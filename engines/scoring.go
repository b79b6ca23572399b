package engines

import "context"

// A Scorer runs users' evaluators, isolated from everything else on the node.
type Scorer interface {
	// Open loads an evaluator's code. InvalidArgument and FailedPrecondition are
	// permanent errors of the code; Unavailable reports what the node lacks to
	// run evaluators.
	Open(ctx context.Context, code EvaluatorCode) (Evaluation, error)
}

// An EvaluatorCode is a built evaluator revision on this node's disk.
type EvaluatorCode struct {
	Dir       string            // the files of the revision
	EntryFile string            // relative to Dir
	EntryFunc string            // in EntryFile
	Env       map[string]string // the evaluator's secrets, by keyName
	// Parallelism is the maximum number of rows scored concurrently; the number
	// of cores limits it too. 0 is 1.
	Parallelism int
}

// An Evaluation is a loaded evaluator. It is safe for concurrent use.
type Evaluation interface {
	// Score scores rows and returns one score for each, in the same order. A row
	// holds the keyword arguments of the evaluator's function: messages, whose
	// last is the answer to score, and the other fields of the dataset row. A row
	// on which the code fails has an invalid score; an error means that no row
	// can be scored.
	Score(ctx context.Context, rows []map[string]any) ([]Score, error)
	// Close stops all processes of the evaluation.
	Close() error
}

// A Score is the result of an evaluator for one row. An exception, a timeout or
// a value outside 0..1 gives an invalid score with its reason.
type Score struct {
	Value   float64
	Valid   bool
	Reason  string
	Metrics map[string]float64
	Stdout  string // what the code printed for the row, truncated
	Stderr  string
}

// A Builder checks an evaluator's code before jobs use it.
type Builder interface {
	// Build compiles the code, checks its requirements, imports its entry file
	// and calls its function once. The log reports these steps and the output.
	// InvalidArgument is an error of the code; Unavailable reports what the
	// machine lacks to check it.
	Build(ctx context.Context, code EvaluatorCode, requirements string) (log string, err error)
}

package engines

import "context"

// A Scorer runs evaluators of users, isolated from everything else on the node.
type Scorer interface {
	// Open loads an evaluator's code. InvalidArgument and FailedPrecondition are
	// permanent errors of the code; Unavailable reports what the node lacks to
	// run evaluators.
	Open(ctx context.Context, code EvaluatorCode) (Evaluation, error)
}

// An EvaluatorCode is a built evaluator revision on this node's disk.
type EvaluatorCode struct {
	Dir       string            // directory with the files of the revision
	EntryFile string            // path relative to Dir
	EntryFunc string            // function in EntryFile
	Env       map[string]string // the evaluator's secrets, by keyName
	// Parallelism is the maximum number of rows scored concurrently; 0 is 1. The number of cores is
	// a second limit.
	Parallelism int
}

// An Evaluation is a loaded evaluator. It is safe for concurrent use.
type Evaluation interface {
	// Score scores rows and returns one score for each, in the order of rows. A row holds the
	// keyword arguments of the evaluator's function: messages, the last of which is the response to
	// score, and the other fields of the dataset row. If the evaluator's code fails on a row, that
	// row's score is invalid; an error means that no row can be scored.
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
	Stdout  string // output of the code for the row, truncated
	Stderr  string
}

// A Builder checks an evaluator's code before jobs use it.
type Builder interface {
	// Build compiles the evaluator's code, checks its requirements, imports its entry file and calls
	// its function once, with an example row. Build returns InvalidArgument if the evaluator is
	// invalid, and Unavailable if the node lacks a program that the checks need. A call without a
	// valid score is no error, because the function may require fields that the example row lacks.
	Build(ctx context.Context, code EvaluatorCode, requirements string) (BuildReport, error)
}

// A BuildReport reports the steps of a build.
type BuildReport struct {
	Log   string // the steps, and the output of the code
	Trial string // why the call with an example row gave no valid score; "" when it gave one
}

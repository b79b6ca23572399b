package engines

import "context"

// A Scorer runs evaluators, isolated from everything else on the node.
type Scorer interface {
	// Open loads the code of an evaluator. InvalidArgument and FailedPrecondition are permanent
	// errors of the code. Unavailable states what the node lacks to run evaluators.
	Open(ctx context.Context, code EvaluatorCode) (Evaluation, error)
}

// An EvaluatorCode is a built revision of an evaluator on this node.
type EvaluatorCode struct {
	Dir       string            // directory with the files of the revision
	EntryFile string            // path of the file with the function, relative to Dir
	EntryFunc string            // name of the evaluator's function in EntryFile
	Env       map[string]string // values of the evaluator's secrets, by their keyName
	// Parallelism is the maximum number of rows that are scored concurrently; 0 stands for 1. The
	// number of cores limits it too.
	Parallelism int
}

// An Evaluation is a loaded evaluator. It is safe for concurrent use.
type Evaluation interface {
	// Score scores rows, and returns a score for each, in order. A row has the keyword arguments of
	// the evaluator's function: messages, whose last one is the response to score, and the other
	// fields of the dataset row. If the code fails on a row, the score of that row is invalid. An
	// error means that no row can be scored.
	Score(ctx context.Context, rows []map[string]any) ([]Score, error)
	// Close stops all processes of the evaluation.
	Close() error
}

// A Score is the result of an evaluator for a row. After an exception, a timeout, or a value
// outside of 0 to 1, it is invalid and has a reason.
type Score struct {
	Value   float64
	Valid   bool
	Reason  string
	Metrics map[string]float64
	Stdout  string // output of the code for the row, truncated
	Stderr  string
}

// A Builder checks the code of an evaluator before jobs use it.
type Builder interface {
	// Build compiles the code, checks its requirements, imports its entry file, and calls its
	// function once with an example row. It returns InvalidArgument if the evaluator is invalid,
	// and Unavailable if the node lacks a program that the checks need. If the call returns no
	// valid score, that is no error, because the function may need fields that the example row does
	// not have.
	Build(ctx context.Context, code EvaluatorCode, requirements string) (BuildReport, error)
}

// A BuildReport reports the steps of a build.
type BuildReport struct {
	Log   string // steps of the build, and output of the code
	Trial string // why the call with an example row returned no valid score; "" if it returned one
}

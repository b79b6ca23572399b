// Package examples holds data to try the platform with; README.md says what it
// is and how it was made.
package examples

import "embed"

// Files are the datasets of this folder, and an evaluator.
//
//go:embed *.jsonl shout-evaluator
var Files embed.FS

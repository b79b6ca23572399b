// Package examples holds data to try the platform with, and the script of `anneal demo`. README.md
// describes the files and how they were made.
package examples

import "embed"

// Files are the datasets of this directory, an evaluator, a recording and the demo's script.
//
//go:embed *.jsonl *.json *.wav demo.sh shout-evaluator
var Files embed.FS

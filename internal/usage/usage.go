// Package usage has the error of a command line that is wrong.
package usage

import "fmt"

// Error is a command line that was not understood. The program exits with 2.
type Error struct{ Err error }

func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns what is wrong with the command line.
func (e Error) Unwrap() error { return e.Err }

// Errorf returns an Error with a formatted message.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

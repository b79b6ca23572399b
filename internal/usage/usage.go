// Package usage defines the error of an invalid command line, and sections of flags in the help.
package usage

import "fmt"

// An Error is the error of an invalid command line, for which the program exits with code 2.
type Error struct{ Err error }

func (e Error) Error() string { return e.Err.Error() }

// Unwrap returns the cause.
func (e Error) Unwrap() error { return e.Err }

// Errorf returns an Error with a formatted message.
func Errorf(format string, args ...any) error { return Error{fmt.Errorf(format, args...)} }

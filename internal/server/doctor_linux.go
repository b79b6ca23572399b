package server

import "golang.org/x/sys/unix"

// clockSynchronized reports whether the kernel considers the clock synchronized; known is false if
// the kernel does not say.
func clockSynchronized() (synchronized, known bool) {
	var state unix.Timex
	status, err := unix.Adjtimex(&state)
	if err != nil {
		return false, false
	}
	return status != unix.TIME_ERROR, true
}

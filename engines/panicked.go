package engines

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"

	"anneal/domain"
)

// EnginePanicked is the reason of an error with the code Internal: the engine panicked in a call. It
// continues with other calls.
const EnginePanicked = "ENGINE_PANICKED"

// ErrPanicked returns the error of a call that panicked with a cause. It must be called by the deferred
// function that has recovered from the panic.
func ErrPanicked(cause any) error {
	return &domain.Error{Code: domain.Internal, Reason: EnginePanicked, Message: fmt.Sprintf(
		"the engine failed: report this error to the operator if it happens again: %v (%s)", cause, panicSite())}
}

// panicSite returns the file and line of the innermost panic of the goroutine.
func panicSite() string {
	frames := runtime.CallersFrames(callers())
	panicked := false
	for {
		frame, more := frames.Next()
		switch {
		case frame.Function == "runtime.gopanic":
			panicked = true
		case panicked && !strings.HasPrefix(frame.Function, "runtime."):
			return fmt.Sprintf("%s:%d", filepath.Base(frame.File), frame.Line)
		}
		if !more {
			return "unknown position"
		}
	}
}

func callers() []uintptr {
	pcs := make([]uintptr, 64)
	return pcs[:runtime.Callers(1, pcs)]
}

package kernel

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
)

// active is the level (the instruction set) in use: avx512, avx2 or go.
var active = start(os.Getenv("ANNEAL_KERNEL"))

// start returns the requested level, or the best level if the processor does not support the
// requested one.
func start(requested string) string {
	level := levels()[0]
	if slices.Contains(levels(), requested) {
		level = requested
	}
	use(level)
	return level
}

// Level returns the instruction set in use: "avx512", "avx2" or "go". It is the value of
// ANNEAL_KERNEL if the processor supports that level, otherwise the best supported level.
func Level() string { return active }

// Arithmetic names what results depend on besides their operands: programs with the same Arithmetic
// return bit-identical results. It is the level and, for plain Go, the processor's architecture and
// whether package math uses fused multiply-adds. Assembly requires them.
func Arithmetic() string {
	if active != "go" {
		return active
	}
	return "go-" + runtime.GOARCH + mathFeatures()
}

// Levels returns the names of the instruction sets that this processor supports, best first. Plain
// Go ("go") is always supported.
func Levels() []string { return levels() }

// SetLevel changes the active level. It returns an error if the processor does not support the
// level. It must not run concurrently with other functions of the package.
func SetLevel(level string) error {
	if !slices.Contains(levels(), level) {
		return fmt.Errorf("kernel level %q: this processor supports only %s", level, strings.Join(levels(), ", "))
	}
	active = level
	use(level)
	return nil
}

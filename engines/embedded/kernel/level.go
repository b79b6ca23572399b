package kernel

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// active is the level in use.
var active = start(os.Getenv("ANNEAL_KERNEL"))

// start is the best level, or the one asked for if the processor has it.
func start(wish string) string {
	level := levels()[0]
	if slices.Contains(levels(), wish) {
		level = wish
	}
	use(level)
	return level
}

// Level is the instruction set in use: "avx512", "avx2" or "go". It is the best
// the processor has, or the one ANNEAL_KERNEL names if the processor has that;
// any other value of ANNEAL_KERNEL is passed over.
func Level() string { return active }

// Levels are those that this processor has, best first.
func Levels() []string { return levels() }

// SetLevel changes the level. No other call into the package may run meanwhile.
func SetLevel(level string) error {
	if !slices.Contains(levels(), level) {
		return fmt.Errorf("kernel level %q: this processor has %s; choose one of these", level, strings.Join(levels(), ", "))
	}
	active = level
	use(level)
	return nil
}

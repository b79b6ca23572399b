package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded"
	"anneal/engines/external"
)

// engineFlags say with what a node trains and serves.
type engineFlags struct {
	completer, command string
}

const embeddedEngine = "embedded"

func completers() []string { return append([]string{embeddedEngine}, external.Presets()...) }

func (e *engineFlags) add(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&e.completer, "engine", embeddedEngine, "what serves models on this node: "+strings.Join(completers(), ", "))
	f.StringVar(&e.command, "engine-command", "", "command line of the engine's server, with {dir} or {gguf}, {port}, {name} and {adapter} (default: the engine's own)")
}

func (e *engineFlags) check(v *domain.Violations) {
	v.Require(e.completer == "" || slices.Contains(completers(), e.completer), "--engine", "must be one of %s", strings.Join(completers(), ", "))
	v.Require(e.command == "" || cmp.Or(e.completer, embeddedEngine) != embeddedEngine, "--engine-command", "belongs to an engine with a server: give --engine too")
	v.Require(e.completer != external.OpenAI || e.command != "", "--engine-command", "is required for a server without a preset: its command line, with {dir} and {port}")
}

// build makes the node's engine; dir is for files of its own. What cannot be
// had is told in the log and in the engine's Why, and the node does the rest.
func (e *engineFlags) build(dir string, logger *slog.Logger) (engines.Engine, error) {
	engine := embedded.New(embedded.Options{})
	if cmp.Or(e.completer, embeddedEngine) == embeddedEngine {
		return engine, nil
	}
	engine.Name += " and " + e.completer
	var err error
	engine.Completer, err = external.New(external.Options{Preset: e.completer, Command: e.command, Dir: filepath.Join(dir, "work")})
	switch {
	case domain.CodeOf(err) == domain.InvalidArgument:
		return engine, usageError{errors.New("--" + err.Error())}
	case err != nil:
		logger.Error("this node cannot serve models", "engine", e.completer, "reason", err)
		engine.Completer, engine.Why["complete"] = nil, fmt.Sprintf("%s: %v", e.completer, err)
	}
	return engine, nil
}

package main_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parseSources parses the program's Go files, by package.
func parseSources(t *testing.T) map[string][]*ast.File {
	root := filepath.Join("..", "..")
	sources := map[string][]*ast.File{}
	require.NoError(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		skipped := strings.HasPrefix(entry.Name(), "_") || entry.Name() == "testdata" ||
			strings.HasPrefix(entry.Name(), ".") && entry.Name() != ".."
		if err != nil || entry.IsDir() && skipped {
			return cmp.Or(err, fs.SkipDir)
		}
		if entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			sources[filepath.Dir(path)] = append(sources[filepath.Dir(path)], file)
		}
		return err
	}))
	return sources
}

// metricsOf lists the Prometheus metrics that the sources declare.
func metricsOf(sources map[string][]*ast.File) string {
	rows := map[string]string{}
	eachNode(sources, func(_ string, node ast.Node) {
		call, ok := node.(*ast.CallExpr)
		if !ok || len(call.Args) == 0 {
			return
		}
		constructor, ok := call.Fun.(*ast.SelectorExpr)
		if ok && constructor.Sel.Name == "NewDesc" {
			row := describedMetric(call)
			rows[row.name] = row.line
			return
		}
		options, isOptions := call.Args[0].(*ast.CompositeLit)
		if !ok || !isOptions || !strings.HasPrefix(constructor.Sel.Name, "New") {
			return
		}
		name, help := text(elementOf(options, "Name"), nil), text(elementOf(options, "Help"), nil)
		if !strings.HasPrefix(name, "anneal_") {
			return
		}
		labels := ""
		if len(call.Args) > 1 {
			labels = labelsOf(call.Args[1])
		}
		kind := strings.ToLower(regexp.MustCompile(`^New|Vec$|Func$`).ReplaceAllString(constructor.Sel.Name, ""))
		rows[name] = fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, labels, cell(help))
	})
	return "`/metrics` serves these for Prometheus, and those of Go and of the process (`go_*`,\n" +
		"`process_*`). It needs no key, unless the server has the flag `--private-metrics`. Metrics with a\n" +
		"label account, node, deployment or target are on `/metrics/detailed`, which needs the operator's\n" +
		"key and has all others too. Metrics whose names begin with `anneal_agent_` are those of an agent\n" +
		"that has the flag `--metrics`, with those of Go, of the process, of its disk and of its connection\n" +
		"to NATS.\n\n" +
		"| metric | type | labels | |\n|---|---|---|---|\n" + sorted(rows)
}

// A metricRow is a row of the reference of metrics.
type metricRow struct{ name, line string }

// describedMetric returns the row of a call of prometheus.NewDesc.
func describedMetric(call *ast.CallExpr) metricRow {
	name, kind := text(call.Args[0], nil), "gauge"
	if strings.HasSuffix(name, "_total") {
		kind = "counter"
	}
	return metricRow{name, fmt.Sprintf("| `%s` | %s | %s | %s |\n", name, kind, labelsOf(call.Args[2]),
		cell(text(call.Args[1], nil)))}
}

// labelsOf returns the labels in a literal list.
func labelsOf(list ast.Expr) string {
	var labels []string
	if literal, ok := list.(*ast.CompositeLit); ok {
		for _, label := range literal.Elts {
			labels = append(labels, text(label, nil))
		}
	}
	return strings.Join(labels, ", ")
}

func sorted(rows map[string]string) (all string) {
	for _, key := range slices.Sorted(maps.Keys(rows)) {
		all += rows[key]
	}
	return all
}

func eachNode(sources map[string][]*ast.File, visit func(dir string, node ast.Node)) {
	for _, dir := range slices.Sorted(maps.Keys(sources)) {
		for _, file := range sources[dir] {
			ast.Inspect(file, func(node ast.Node) bool {
				visit(dir, node)
				return true
			})
		}
	}
}

// elementOf returns the value of a field in a composite literal, or nil.
func elementOf(literal *ast.CompositeLit, name string) ast.Expr {
	for _, element := range literal.Elts {
		if pair, ok := element.(*ast.KeyValueExpr); ok {
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == name {
				return pair.Value
			}
		}
	}
	return nil
}

// text returns the first string in an expression: a literal, a concatenation of literals, or a
// constant.
func text(e ast.Expr, constants map[string]string) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			value, _ := strconv.Unquote(e.Value)
			return value
		}
	case *ast.BinaryExpr:
		return cmp.Or(text(e.X, constants), "…") + cmp.Or(text(e.Y, constants), "…")
	case *ast.Ident:
		return constants[e.Name]
	case *ast.SelectorExpr:
		return constants[e.Sel.Name]
	case *ast.CallExpr: // fmt.Sprintf and similar functions
		for _, argument := range e.Args {
			if value := text(argument, constants); value != "" {
				return value
			}
		}
	}
	return ""
}

var (
	reasonShape = regexp.MustCompile(`^[A-Z][A-Z0-9]+(_[A-Z0-9]+)+$`)
	formatVerb  = regexp.MustCompile(`%[-+#.0-9]*[a-zA-Z]`)
)

// A shownReason is the row of the reference for an error's reason.
type shownReason struct{ code, message string }

// A reasonCall describes a function with a parameter named reason: the index of that parameter, and
// the code of the error that the function returns, or the index of the code's parameter.
type reasonCall struct {
	reason, code int // -1 when the function decides the code
	codeName     string
}

// reasonsPage lists the reasons of errors: values of fields named Reason, and
// of parameters named reason.
func reasonsPage(t *testing.T, sources map[string][]*ast.File) string {
	constants, functions := reasonConstants(sources), reasonFunctions(sources)
	reasons := map[string]shownReason{}
	add := func(reason, code, message string) {
		if reasonShape.MatchString(reason) {
			known := reasons[reason]
			reasons[reason] = shownReason{cmp.Or(known.code, code), cmp.Or(known.message, message)}
		}
	}
	var last shownReason // row of the error whose Reason the next assignment sets
	eachNode(sources, func(_ string, node ast.Node) {
		switch n := node.(type) {
		case *ast.FuncDecl:
			last = shownReason{}
		case *ast.CompositeLit:
			reason, code := elementOf(n, "Reason"), codeName(elementOf(n, "Code"))
			if reason != nil && elementOf(n, "Code") != nil && code != "CODE" { // err.Code: a copy of another error
				add(text(reason, constants), code, text(elementOf(n, "Message"), nil))
			}
		case *ast.AssignStmt:
			for i, left := range n.Lhs {
				target, ok := left.(*ast.SelectorExpr)
				if ok && target.Sel.Name == "Reason" && i < len(n.Rhs) && last.code != "" { // not the reason of an audit record
					add(text(n.Rhs[i], constants), last.code, last.message)
				}
			}
		case *ast.CallExpr:
			name := calleeOf(n)
			if f, found := functions[name]; found && f.reason < len(n.Args) {
				code, message := f.codeName, ""
				if f.code >= 0 && f.code < len(n.Args) {
					code = codeName(n.Args[f.code])
				}
				if f.reason+1 < len(n.Args) {
					message = text(n.Args[f.reason+1], nil)
				}
				add(text(n.Args[f.reason], constants), code, message)
			}
			if name == "Errorf" && len(n.Args) > 1 && codeName(n.Args[0]) != "" {
				last = shownReason{codeName(n.Args[0]), text(n.Args[1], nil)}
			}
		}
	})
	rows := map[string]string{}
	for reason, shown := range reasons {
		require.NotEmpty(t, shown.code, "%s: a reader cannot tell what this error is: set code and reason together", reason)
		message := formatVerb.ReplaceAllString(shown.message, "…")
		rows[reason] = fmt.Sprintf("| `%s` | %s | %s |\n", reason, shown.code, cell(message))
	}
	return "Reasons are stable; messages are not. A code or message that depends on the request is left out.\n\n" +
		"| reason | code | such as |\n|---|---|---|\n" + sorted(rows)
}

func calleeOf(call *ast.CallExpr) string {
	switch f := call.Fun.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		return f.Sel.Name
	}
	return ""
}

// codeName returns a code as the API spells it: InvalidArgument is INVALID_ARGUMENT.
func codeName(e ast.Expr) string {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	if name == "" || !ast.IsExported(name) {
		return ""
	}
	return strings.ToUpper(regexp.MustCompile(`([a-z])([A-Z])`).ReplaceAllString(name, "${1}_$2"))
}

// reasonConstants returns the string constants that look like reasons, by name.
func reasonConstants(sources map[string][]*ast.File) map[string]string {
	constants := map[string]string{}
	eachNode(sources, func(_ string, node ast.Node) {
		if spec, ok := node.(*ast.ValueSpec); ok {
			for i, name := range spec.Names {
				if i < len(spec.Values) && reasonShape.MatchString(text(spec.Values[i], nil)) {
					constants[name.Name] = text(spec.Values[i], nil)
				}
			}
		}
	})
	return constants
}

// reasonFunctions returns the functions with a parameter named reason, by name.
func reasonFunctions(sources map[string][]*ast.File) map[string]reasonCall {
	functions := map[string]reasonCall{}
	eachNode(sources, func(_ string, node ast.Node) {
		declared, ok := node.(*ast.FuncDecl)
		if !ok || declared.Body == nil {
			return
		}
		var parameters []string
		for _, list := range declared.Type.Params.List {
			for _, name := range list.Names {
				parameters = append(parameters, name.Name)
			}
		}
		f := reasonCall{reason: slices.Index(parameters, "reason"), code: slices.Index(parameters, "code")}
		if f.reason < 0 {
			return
		}
		ast.Inspect(declared.Body, func(node ast.Node) bool {
			switch n := node.(type) {
			case *ast.CompositeLit:
				f.codeName = cmp.Or(f.codeName, codeName(elementOf(n, "Code")))
			case *ast.AssignStmt: // code := domain.InvalidArgument
				if name, ok := n.Lhs[0].(*ast.Ident); ok && name.Name == "code" {
					f.codeName = cmp.Or(f.codeName, codeName(n.Rhs[0]))
				}
			case *ast.CallExpr:
				if calleeOf(n) == "Errorf" && len(n.Args) > 1 {
					f.codeName = cmp.Or(f.codeName, codeName(n.Args[0]))
				}
			}
			return true
		})
		functions[declared.Name.Name] = f
	})
	return functions
}

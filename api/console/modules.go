package console

import (
	"bytes"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// imports matches the import of names from a module of the console.
var imports = regexp.MustCompile(`(?m)^import \{ (.*) \} from '/console/(.*)'\n`)

// joined returns the entry with all modules that it imports as one module, in which each module is
// after those that it imports. Text that modules have in common compresses well: the files are a
// fifth smaller, and browsers load one file instead of a chain. Names at the top level of modules
// must differ, which TestModules checks.
func joined(entry string, modules map[string][]byte) []byte {
	var out bytes.Buffer
	added := map[string]bool{}
	vendored := map[string][]string{} // names that are imported, by the path of the library
	var add func(name string)
	add = func(name string) {
		if added[name] {
			return
		}
		added[name] = true
		for _, match := range imports.FindAllSubmatch(modules[name], -1) {
			if from := string(match[2]); strings.HasPrefix(from, "vendor/") {
				vendored[from] = append(vendored[from], strings.Split(string(match[1]), ", ")...)
			} else {
				add(from)
			}
		}
		out.Write(imports.ReplaceAll(modules[name], nil))
	}
	add(entry)
	var head bytes.Buffer
	for _, from := range slices.Sorted(maps.Keys(vendored)) {
		names := slices.Compact(slices.Sorted(slices.Values(vendored[from])))
		fmt.Fprintf(&head, "import { %s } from '/console/%s'\n", strings.Join(names, ", "), from)
	}
	return append(head.Bytes(), out.Bytes()...)
}

package main_test

import (
	"fmt"
	"strings"

	"anneal/api/inert"
)

// inertPage lists the fields of requests that are accepted, but have no effect.
func inertPage() string {
	var page strings.Builder
	page.WriteString("These fields of requests are accepted, and those of resources are stored and returned, but " +
		"they have\nno effect. The response to a request that sets one of them to a value other than its default has " +
		"an\n`anneal-warning` header that names the field and the reason.\n\n" +
		"A request that gives an output-only field, such as `createTime`, another value than the resource has\nbefore " +
		"or after the change gets the same header.\n")
	for _, name := range inert.Requests() {
		fmt.Fprintf(&page, "\n## %s\n\n| field | no effect | reason |\n|---|---|---|\n", name)
		for _, f := range inert.Of(name) {
			when := "always"
			if !f.Always() {
				when = f.When.Text
			}
			fmt.Fprintf(&page, "| `%s` | %s | %s |\n", f.Path, when, cell(f.Reason))
		}
	}
	return page.String()
}

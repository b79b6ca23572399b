// Command gen writes the assembly of package kernel and its declarations. Run it with go
// generate in the package's directory.
package main

import (
	"log"
	"os"
	"strings"
)

func main() {
	for name, text := range files() {
		if err := os.WriteFile(name, text, 0o644); err != nil {
			log.Fatal(err)
		}
	}
}

// files returns the contents of all generated files, by name.
func files() map[string][]byte {
	list := map[string][]byte{
		"tile_amd64.go":    tileGo(),
		"columns_amd64.s":  columnsAssembly(),
		"columns_amd64.go": columnsGo(),
		"heads_amd64.s":    headsAssembly(),
		"heads_amd64.go":   headsGo(),
		"vector_amd64.s":   vectorAssembly(),
		"vector_amd64.go":  vectorGo(),
	}
	for _, f := range storages {
		list["tile"+strings.ToLower(f.name)+"_amd64.s"] = tileAssembly(f)
	}
	return list
}

package api

import (
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var documentFile = flag.String("document", "", "where to write the OpenAPI document that a server serves")

func TestTheDocumentIsOpenAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine, and long")
	}
	s := newStage(t, Limits{})
	if *documentFile != "" {
		require.NoError(t, os.WriteFile(*documentFile, s.call("GET", "/openapi.json", "", "").body, 0o644))
	}
	doc := s.document()
	require.NoError(t, doc.Validate(t.Context()))
	described := 0
	for _, path := range doc.Paths.Map() {
		described += len(path.Operations())
	}
	offered := 0
	for _, op := range operations(nil) {
		if !op.Hidden {
			offered++
		}
	}
	require.Equal(t, offered, described)
}

// Every component and every field of one says what it is, in openapi_texts.go.
func TestEverythingIsDescribed(t *testing.T) {
	doc := newStage(t, Limits{}).document()
	var missing []string
	for name, component := range doc.Components.Schemas {
		if component.Value.Description == "" && !strings.HasSuffix(name, "Page") && !strings.HasSuffix(name, "Request") {
			missing = append(missing, fmt.Sprintf("typeTexts[%q]", name))
		}
		for field, property := range component.Value.Properties {
			if property.Value.Description == "" || property.Ref != "" && descriptionOf(name, field) == "" {
				missing = append(missing, fmt.Sprintf("fieldTexts[%q] or fieldTexts[%q]", name+"."+field, field))
			}
		}
	}
	slices.Sort(missing)
	require.Empty(t, missing, strings.Join(missing, "\n"))
}

func TestTheDocumentIsCacheable(t *testing.T) {
	s := newStage(t, Limits{})
	first := s.call("GET", "/openapi.json", "", "")
	require.Equal(t, http.StatusOK, first.status)
	r := s.request("GET", "/openapi.json", "", nil)
	r.Header.Set("If-None-Match", first.header.Get("ETag"))
	require.Equal(t, http.StatusNotModified, s.send(r).status)
}

package api

import (
	"encoding/json"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"anneal/api/audio"
	"anneal/api/events"
	"anneal/api/inference"
	"anneal/api/openapi"
	"anneal/api/request"
	"anneal/api/rest"

	"github.com/stretchr/testify/require"
)

var documentFile = flag.String("document", "", "where to write the OpenAPI document that a server serves")

func TestDocumentIsOpenAPI(t *testing.T) {
	if testing.Short() {
		t.Skip("slow: one goroutine validates the whole document")
	}
	s := newHarness(t, request.Limits{})
	if *documentFile != "" {
		require.NoError(t, os.WriteFile(*documentFile, s.call("GET", "/openapi.json", "", "").body, 0o644))
	}
	doc := s.document()
	require.NoError(t, doc.Validate(t.Context()))
	require.Equal(t, "5.10.0", doc.Info.Version, "the version of the interface, not of the program")
	described := 0
	for _, path := range doc.Paths.Map() {
		described += len(path.Operations())
	}
	offered := 0
	for _, op := range (&Server{}).operations() {
		if !op.Hidden {
			offered++
		}
	}
	require.Equal(t, offered, described)
}

// TestEverythingIsDescribed checks that every component and each of its fields has a description.
func TestEverythingIsDescribed(t *testing.T) {
	doc := newHarness(t, request.Limits{}).document()
	var missing []string
	for name, component := range doc.Components.Schemas {
		if component.Value.Description == "" && !strings.HasSuffix(name, "Page") && !strings.HasSuffix(name, "Request") {
			missing = append(missing, fmt.Sprintf("typeTexts[%q]", name))
		}
		for field, property := range component.Value.Properties {
			if property.Value.Description == "" || property.Ref != "" && !documented(name, field) {
				missing = append(missing, fmt.Sprintf("fieldTexts[%q] or fieldTexts[%q]", name+"."+field, field))
			}
		}
	}
	slices.Sort(missing)
	require.Empty(t, missing, strings.Join(missing, "\n"))
}

func TestDocumentIsCacheable(t *testing.T) {
	s := newHarness(t, request.Limits{})
	first := s.call("GET", "/openapi.json", "", "")
	require.Equal(t, http.StatusOK, first.status)
	r := s.request("GET", "/openapi.json", "", nil)
	r.Header.Set("If-None-Match", first.header.Get("ETag"))
	require.Equal(t, http.StatusNotModified, s.send(r).status)
}

func documented(owner, field string) bool {
	for _, d := range []openapi.Documentation{rest.Documentation, inference.Documentation, audio.Documentation,
		events.Documentation} {
		if d.TextOf(owner, field) != "" {
			return true
		}
	}
	return false
}

// TestEveryTagIsDescribed checks that the document describes the groups of all operations, because
// the reference leaves out the operations of a group without a description.
func TestEveryTagIsDescribed(t *testing.T) {
	s := newHarness(t, request.Limits{})
	var document struct{ Tags []struct{ Name string } }
	require.NoError(t, json.Unmarshal(s.call("GET", "/openapi.json", "", "").body, &document))
	described := map[string]bool{}
	for _, tag := range document.Tags {
		described[tag.Name] = true
	}
	for _, op := range s.server.table {
		require.True(t, op.Hidden || described[op.Tag], "%s has the tag %q", op.ID, op.Tag)
	}
}

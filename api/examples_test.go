package api

import (
	"bytes"
	"encoding/json"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/api/wire"
	"anneal/domain"
)

// mostExample bounds an example of the document, in bytes.
const mostExample = 3000

// keepExample makes an exchange an example of the document, when examples are
// being collected and it is the most telling one of its operation so far.
func (s *stage) keepExample(id string, r *http.Request, request []byte, a answer) {
	s.Helper()
	if s.examples == nil || a.header.Get("Content-Type") != "application/json" || r.URL.Path == "/openapi.json" {
		return
	}
	one := example{Path: s.stable(r.URL.RequestURI()), Answer: json.RawMessage(s.stable(string(a.body)))}
	if len(request) > 0 {
		one.Request = json.RawMessage(s.stable(string(s.settable(id, request))))
	}
	old, known := s.examples[id]
	size := len(one.Request) + len(one.Answer)
	if !known || size > len(old.Request)+len(old.Answer) && size <= mostExample {
		s.examples[id] = one
	}
}

// settable is a request without what the server ignores: what it alone sets, and
// fields of inference that it does not know.
func (s *stage) settable(id string, request []byte) []byte {
	s.Helper()
	value, err := wire.Parse(request)
	require.NoError(s, err)
	for _, op := range s.server.table {
		if op.ID == id && op.Body != nil && !op.IsInference() {
			var none domain.Violations
			kept := wire.Normalize(&none, op.Body, value)
			if name, given := value.(map[string]any)["name"]; given {
				kept["name"] = name
			}
			value = map[string]any(kept)
		}
	}
	for _, op := range s.server.table {
		if op.ID == id && op.IsInference() {
			maps.DeleteFunc(value.(map[string]any), func(name string, _ any) bool { _, known := wire.StructOf(op.Body).Field(name); return !known })
		}
	}
	data, err := json.Marshal(value)
	require.NoError(s, err)
	return data
}

// stable is what differs from run to run replaced by what stays the same and
// still has its form.
func (s *stage) stable(text string) string {
	var pretty bytes.Buffer
	if json.Indent(&pretty, []byte(text), "", " ") == nil { // as the patterns of transcripts expect it
		text = pretty.String()
	}
	text = strings.NewReplacer("http://HOST", "https://anneal.example", ": SECONDS", ": 0.042", "UUID", sampleID, "SIGNATURE", "c2lnbmF0dXJl",
		"UNTIL", "1893456000", "HASH", strings.Repeat("0f", 32), "_SECRET", "_"+strings.Repeat("0", 72)).Replace(scrub(s, text))
	return strings.TrimSpace(text)
}

// TestExamples collects the examples of the document from what the transcripts
// really send and are answered; -update writes them anew.
func TestExamples(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	examples := map[string]example{}
	for _, file := range files {
		script, err := os.ReadFile(file)
		require.NoError(t, err)
		s := newStage(t, Limits{})
		s.examples = examples
		play(s, string(script))
	}
	elsewhere := set("uploadModel", "validateModelUpload", "revokeNode") // these have tests of their own
	var missing []string
	for _, op := range operations(nil) {
		if _, ok := examples[op.ID]; !ok && !elsewhere[op.ID] && !op.Hidden && op.Media == "" {
			missing = append(missing, op.ID)
		}
	}
	require.Empty(t, missing, "operations that no transcript of testdata shows at work")
	got, err := json.MarshalIndent(examples, "", " ")
	require.NoError(t, err)
	got = append(got, '\n')
	if *update {
		require.NoError(t, os.WriteFile("openapi_examples.json", got, 0o644))
		return
	}
	require.True(t, bytes.Equal(got, examplesJSON), "the examples are not those of the transcripts: go test ./api -update")
}

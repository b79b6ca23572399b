package api

import (
	"net/http"
	"sync"

	"github.com/stretchr/testify/require"

	"anneal/api/described"
)

// documents are those that servers of tests served, read: by their ETags.
var documents sync.Map

// document is what this stage's server says of itself.
func (s *stage) document() *described.Document {
	s.Helper()
	data, tag := s.server.about.bytes()
	if known, ok := documents.Load(tag); ok {
		return known.(*described.Document)
	}
	doc, err := described.Read(data)
	require.NoError(s, err)
	documents.Store(tag, doc)
	return doc
}

// hold holds an exchange against the document that this very server serves.
func (s *stage) hold(r *http.Request, sent []byte, a answer) {
	s.Helper()
	operation, request, err := s.document().Hold(described.Exchange{Request: r, Sent: sent, Status: a.status, Header: a.header, Body: a.body})
	require.NoError(s, err)
	if a.status == http.StatusOK && r.Method != http.MethodHead {
		s.keepExample(operation, r, request, a)
	}
}

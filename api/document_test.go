package api

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/stretchr/testify/require"

	"anneal/api/described"
)

// documents are the parsed documents of the tests' servers, by the options that documents can
// depend on: to render and parse a document takes longer than most tests.
var documents sync.Map

// document returns the OpenAPI document of the harness's server.
func (s *harness) document() *described.Document {
	s.Helper()
	o := &s.server.Options
	options := fmt.Sprintf("%+v", []any{o.Limits, o.Cluster, o.Direct, o.Origins, o.ReaderURL, o.Prices, o.Strict,
		o.Private, o.PrivateMetrics})
	if known, ok := documents.Load(options); ok {
		return known.(*described.Document)
	}
	data, _ := s.server.document.Bytes()
	doc, err := described.Read(data)
	require.NoError(s, err)
	documents.Store(options, doc)
	return doc
}

// validate requires that an exchange matches the document of the harness's server.
func (s *harness) validate(r *http.Request, sent []byte, a response) {
	s.Helper()
	require.NoError(s, s.document().ValidateExchange(described.Exchange{Request: r, Sent: sent, Status: a.status,
		Header: a.header, Body: a.body}))
}

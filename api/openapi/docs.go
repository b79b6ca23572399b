package openapi

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"time"

	"anneal/api/request"
)

// docsFiles contains the files of the documentation page, which renders /openapi.json and loads
// nothing from other servers.
//
//go:embed docs
var docsFiles embed.FS

// docsPolicy is the Content-Security-Policy of the documentation page. It permits only the page's
// own scripts and styles, and requests to the page's server.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; " +
	"form-action 'none'; frame-ancestors 'none'"

// Operations returns the operations that serve the OpenAPI document and the documentation page.
func (d *Document) Operations() []request.Operation {
	all := []request.Operation{
		{ID: "getOpenAPI", Method: "GET", Path: "/openapi.json", Tag: "system", Summary: "Read the OpenAPI document",
			Gate: request.Everyone, Media: "application/json", Handle: d.serve},
		{ID: "getDocs", Method: "GET", Path: "/docs", Tag: "system",
			Summary: "Show the API reference in a browser", Gate: request.Everyone,
			Media: "text/html", Handle: docsFile("index.html", "text/html; charset=utf-8")},
	}
	for _, file := range [][2]string{{"docs.css", "text/css; charset=utf-8"},
		{"docs.js", "text/javascript; charset=utf-8"}, {"rows.html", "text/html; charset=utf-8"}} {
		name, media := file[0], file[1]
		all = append(all, request.Operation{ID: "GET /docs/" + name, Method: "GET", Path: "/docs/" + name,
			Gate: request.Everyone, Hidden: true, Handle: docsFile(name, media)})
	}
	return all
}

func docsFile(name, media string) request.Handler {
	return func(c *request.Call) (any, error) {
		data, err := docsFiles.ReadFile(path.Join("docs", name))
		if err != nil {
			return nil, err
		}
		h := c.Writer.Header()
		h.Set("Content-Type", media)
		h.Set("Content-Security-Policy", docsPolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		http.ServeContent(c.Writer, c.Request, "", time.Time{}, bytes.NewReader(data))
		return nil, nil
	}
}

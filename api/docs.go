package api

import (
	"bytes"
	"embed"
	"net/http"
	"path"
	"time"

	"anneal/api/request"
)

// docsFiles are the page of documentation: it shows what /openapi.json says, and
// loads nothing from anywhere else.
//
//go:embed docs
var docsFiles embed.FS

// docsPolicy lets the page run its own script and ask its own server, and
// nothing more.
const docsPolicy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

func docsOperations(s *Server) []request.Operation {
	all := []request.Operation{{ID: "getDocs", Method: "GET", Path: "/docs", Tag: "system", Summary: "Read the documentation in a browser", Gate: request.Everyone,
		Media: "text/html", Handle: s.handle(docsFile("index.html", "text/html; charset=utf-8"))}}
	for _, file := range [][2]string{{"docs.css", "text/css; charset=utf-8"}, {"docs.js", "text/javascript; charset=utf-8"}, {"rows.html", "text/html; charset=utf-8"}} {
		name, media := file[0], file[1]
		all = append(all, request.Operation{ID: "GET /docs/" + name, Method: "GET", Path: "/docs/" + name, Gate: request.Everyone, Hidden: true, Handle: s.handle(docsFile(name, media))})
	}
	return append(all, request.Operation{ID: "GET /", Method: "GET", Path: "/", Gate: request.Everyone, Hidden: true, Handle: s.handle(toDocs)})
}

// toDocs sends whoever comes with a browser and no path to the documentation.
func toDocs(c *call) (any, error) {
	http.Redirect(c.Writer, c.Request, "/docs", http.StatusFound)
	return nil, nil
}

func docsFile(name, media string) handler {
	return func(c *call) (any, error) {
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

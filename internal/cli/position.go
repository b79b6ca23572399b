package cli

import (
	"context"
	"net/http"
	"strconv"
	"sync"

	"github.com/spf13/cobra"
)

// positionHeader is the response header with the position of the log whose state the response
// reflects. minPositionHeader is the request header with the position that the response must
// reflect at least.
const (
	positionHeader    = "Anneal-Position"
	minPositionHeader = "Anneal-At-Least"
)

// positions has the latest position of the log that a command has seen in the responses of each
// server, by address. Several control planes can be behind one address, and the next request can
// reach one that is behind. So each request has the position that its response must reflect at
// least: a command reads its own writes, and its reads are monotonic.
type positions struct {
	mu sync.Mutex
	of map[string]uint64
}

type positionsKey struct{}

// positionsOf returns the positions that a command has seen. All clients of a command share them.
func positionsOf(c *cobra.Command) *positions {
	if seen, ok := c.Context().Value(positionsKey{}).(*positions); ok {
		return seen
	}
	seen := &positions{}
	c.SetContext(context.WithValue(c.Context(), positionsKey{}, seen))
	return seen
}

// require adds the position that a response of the server must reflect to the header of a request.
func (p *positions) require(address string, header http.Header) {
	if p == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if last := p.of[address]; last > 0 {
		header.Set(minPositionHeader, strconv.FormatUint(last, 10))
	}
}

// see notes the position in the header of a response of the server.
func (p *positions) see(address string, header http.Header) {
	position, err := strconv.ParseUint(header.Get(positionHeader), 10, 64)
	if p == nil || err != nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.of == nil {
		p.of = map[string]uint64{}
	}
	p.of[address] = max(p.of[address], position)
}

package query

import (
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"anneal/domain"
	"anneal/projections"
)

// scanChunk is how many rows a processor takes at a time, and scanShare how many
// each must have to do before another helps it.
const (
	scanChunk = 512
	scanShare = 4096
)

// scan offers all rows of the account, each to one of as many listings as
// there are processors, and keeps the first of what they kept.
func (l *listing[S, R]) scan(t *projections.Table[S], account string) {
	c := chunks[S]{table: t, first: t.Rank(account), rows: t.Count(account)}
	c.number = (c.rows + scanChunk - 1) / scanChunk
	c.stride = scatter(c.number)
	parts := make([]*listing[S, R], max(1, min(runtime.GOMAXPROCS(0), c.rows/scanShare)))
	panics := make([]any, len(parts))
	var all sync.WaitGroup
	for i := range parts {
		parts[i] = &listing[S, R]{render: l.render, keep: l.keep, keys: l.keys, matches: l.matches, renders: l.renders, after: l.after, size: l.size}
		parts[i].kept.keys = l.keys
		if i > 0 {
			all.Go(func() {
				defer func() { panics[i] = recover() }()
				c.offer(parts[i].offer)
			})
		}
	}
	func() {
		defer all.Wait() // even if render panics
		c.offer(parts[0].offer)
	}()
	for i, part := range parts {
		if panics[i] != nil {
			panic(panics[i]) // the request's own goroutine knows what to do with it
		}
		l.total += part.total
		l.kept.all = append(l.kept.all, part.kept.all...)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	l.kept.all = l.kept.all[:min(len(l.kept.all), l.size+1)]
}

// chunks are an account's rows in parts that any number of goroutines take
// turns at. Neighbours come far apart: where the order wanted is that of the
// names backward, each row would otherwise push out the one before it.
type chunks[S domain.State] struct {
	table          *projections.Table[S]
	first, rows    int // rank of the first row, and how many follow it
	number, stride int // of chunks, and from one to the next
	taken          atomic.Int64
}

// offer hands out the rows of chunks until none is left.
func (c *chunks[S]) offer(to func(*projections.Row[S])) {
	for {
		i := int(c.taken.Add(1)) - 1
		if i >= c.number {
			return
		}
		from := i * c.stride % c.number * scanChunk
		for row := range c.table.From(c.first+from, min(scanChunk, c.rows-from)) {
			to(row)
		}
	}
}

// scatter is a stride that visits each of n once, about 0.62 n, at which no two
// neighbours are near in time.
func scatter(n int) int {
	for stride := n * 618 / 1000; ; stride++ {
		a, b := max(stride, 1), n
		for b != 0 {
			a, b = b, a%b
		}
		if a == 1 || n == 0 {
			return max(stride, 1)
		}
	}
}

// indexed yields the account's rows after the cursor in the listing's order, if
// nothing is left out and an index has that order; otherwise it is nil.
func (l *listing[S, R]) indexed(t *projections.Table[S], account string) iter.Seq[*projections.Row[S]] {
	switch {
	case l.keep != nil || l.matches != nil || len(l.keys) > 1:
		return nil
	case len(l.keys) == 0 && l.after == nil:
		return t.In(account)
	case len(l.keys) == 0:
		return t.NamedAfter(account, l.after.name)
	case l.keys[0].source != rowCreateTime:
		return nil
	}
	var after *projections.Row[S]
	if l.after != nil {
		after = &projections.Row[S]{Name: l.after.name, CreateTime: l.after.values[0].at}
	}
	if l.keys[0].descending {
		return t.CreatedBefore(account, after)
	}
	return t.CreatedAfter(account, after)
}

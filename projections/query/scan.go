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

// scanChunk is the number of rows that a goroutine takes at a time. scanShare is the minimum number
// of rows per goroutine.
const (
	scanChunk = 512
	scanShare = 4096
)

// scan offers the rows of an account to concurrent listings, at most one per processor, and merges
// the rows that they keep into l.
func (l *listing[S, R]) scan(t *projections.Table[S], account string) {
	c := chunks[S]{table: t, first: t.Rank(account), rows: t.Count(account)}
	c.number = (c.rows + scanChunk - 1) / scanChunk
	c.stride = scatter(c.number)
	parts := make([]*listing[S, R], max(1, min(runtime.GOMAXPROCS(0), c.rows/scanShare)))
	panics := make([]any, len(parts))
	var all sync.WaitGroup
	for i := range parts {
		parts[i] = &listing[S, R]{render: l.render, keep: l.keep, keys: l.keys, matches: l.matches, renders: l.renders,
			after: l.after, size: l.size}
		parts[i].kept.keys = l.keys
		if i > 0 {
			all.Go(func() {
				defer func() { panics[i] = recover() }()
				c.offer(parts[i].offer)
			})
		}
	}
	func() {
		defer all.Wait() // wait even if render panics
		c.offer(parts[0].offer)
	}()
	for i, part := range parts {
		if panics[i] != nil {
			panic(panics[i]) // in the goroutine of the caller, which can recover
		}
		l.total += part.total
		l.kept.all = append(l.kept.all, part.kept.all...)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	l.kept.all = l.kept.all[:min(len(l.kept.all), l.size+1)]
}

// A chunks divides the rows of an account into chunks for concurrent goroutines. Chunks that are
// taken one after another are far apart, because in a list by descending name each row of adjacent
// chunks would displace the previous one.
type chunks[S domain.State] struct {
	table          *projections.Table[S]
	first, rows    int // rank of the first row, and number of rows
	number, stride int // number of chunks, and distance between chunks that are taken one after another
	taken          atomic.Int64
}

// offer takes chunks until none is left, and calls a function, to, with each of their rows.
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

// scatter returns a stride of about 0.62 n that visits each of n chunks once. 0.62 is the inverse of
// the golden ratio; with it, neighboring chunks are visited at distant times.
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

// indexed returns an iterator over the account's rows after the previous page in the order of the
// listing, if the listing has no filter and an index has that order. Otherwise it returns nil.
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

package query

import (
	"iter"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"anneal/domain"
	"anneal/projections"
)

// minBlocksPerScan is the minimum number of blocks for which a scan starts another goroutine.
const minBlocksPerScan = 16

// scan distributes the rows of an account over concurrent listings, at most one per processor, and
// merges the rows that they keep into l.
func (l *listing[S, R]) scan(t *projections.Table[S], account string) {
	c := blocks[S]{all: t.Blocks(account)}
	c.stride = coprimeStride(len(c.all))
	parts := make([]*listing[S, R], max(1, min(runtime.GOMAXPROCS(0), len(c.all)/minBlocksPerScan)))
	panics := make([]any, len(parts))
	var all sync.WaitGroup
	for i := range parts {
		parts[i] = &listing[S, R]{renderers: l.renderers, keep: l.keep, keys: l.keys, matches: l.matches, after: l.after,
			size: l.size, columns: l.columns}
		parts[i].kept.keys = l.keys
		if i > 0 {
			all.Go(func() {
				defer func() { panics[i] = recover() }()
				c.forEach(parts[i].considerBlock)
			})
		}
	}
	func() {
		defer all.Wait() // wait for the other goroutines even if render panics in this one
		c.forEach(parts[0].considerBlock)
	}()
	for i, part := range parts {
		if panics[i] != nil {
			panic(panics[i]) // panic again in the caller's goroutine, where it can be recovered
		}
		l.total += part.total
		l.kept.all = append(l.kept.all, part.kept.all...)
	}
	slices.SortFunc(l.kept.all, l.kept.compare)
	l.kept.all = l.kept.all[:min(len(l.kept.all), l.size+1)]
}

// considerBlock calls consider for the rows of a block, with the columns of the block.
func (l *listing[S, R]) considerBlock(b *projections.Block[S]) {
	s := &l.candidate
	s.columns, s.length = s.columns[:0], b.Len()
	s.block++
	l.block, s.scan = b, l
	var columns [maxColumns]*column
	for i, f := range l.columns {
		columns[i] = b.Derive(f.key, func() any {
			var dependent func(i int) bool
			if f.dependent != nil {
				dependent = func(i int) bool { return f.dependent(unsafe.Pointer(b.Row(i))) }
			}
			return newColumn(f.leaf, b.Len(), dependent, func(i int) keyValue {
				l.setCandidate(b.Row(i))
				return f.read(s)
			})
		}).(*column)
	}
	s.columns = append(s.columns, columns[:len(l.columns)]...)
	l.first = b.Derive(firstName{}, func() any {
		first := b.Row(0).Name
		for i := range b.Len() {
			first = min(first, b.Row(i).Name)
		}
		return first
	}).(domain.Name)
	rows, exact := firstRows(b.Len()), true
	if l.matches != nil {
		s.index = 0
		rows, exact = l.matches.among(s)
	}
	if exact && l.keep == nil && l.isOffPage() {
		l.total += rows.count()
		return
	}
	rows.each(func(i int) {
		s.index = i
		l.consider(b.Row(i), exact)
	})
}

// isOffPage reports whether it is known, without reading the rows, that no row of the block is on the page.
func (l *listing[S, R]) isOffPage() bool {
	var last *entry[S] // the last of the kept entries; nil if fewer than size+1 are kept
	if l.kept.Len() > l.size {
		last = &l.kept.all[0]
	}
	if len(l.keys) == 0 {
		return last != nil && l.first >= last.name
	}
	lowest, highest, known := l.keys[0].bounds(&l.candidate)
	if !known {
		return false
	}
	if l.after != nil && l.keys[0].compare(highest, l.after.values[0]) < 0 {
		return true // all rows come before the page
	}
	if last == nil {
		return false
	}
	c := l.keys[0].compare(lowest, last.values[0])
	return c > 0 || c == 0 && len(l.keys) == 1 && l.first >= last.name
}

// derive implements scanned.
func (l *listing[S, R]) derive(key any, compute func() any) any { return l.block.Derive(key, compute) }

// each implements scanned.
func (l *listing[S, R]) each(f func(i int, row unsafe.Pointer, name string)) {
	for i := range l.block.Len() {
		l.setCandidate(l.block.Row(i))
		f(i, l.candidate.row, string(l.block.Row(i).Name))
	}
	l.setCandidate(l.block.Row(l.candidate.index))
}

// firstName is the key under which Block.Derive keeps the lowest name in a block.
type firstName struct{}

// blocks distributes the blocks of an account over concurrent goroutines. Blocks that are taken one
// after another are far apart. Otherwise, in a list by descending create time, each row would come
// before the kept rows and replace one of them.
type blocks[S domain.State] struct {
	all    []*projections.Block[S]
	stride int // distance of two blocks that are taken one after another
	taken  atomic.Int64
}

// forEach takes blocks until none is left, and calls visit with each block.
func (c *blocks[S]) forEach(visit func(*projections.Block[S])) {
	for {
		i := int(c.taken.Add(1)) - 1
		if i >= len(c.all) {
			return
		}
		visit(c.all[i*c.stride%len(c.all)])
	}
}

// coprimeStride returns a stride of about 0.62 n that is coprime to n, so that it visits each of n
// blocks once. 0.62 is the inverse of the golden ratio, with which neighboring blocks are visited
// at distant times.
func coprimeStride(n int) int {
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

// indexed returns an iterator over the account's rows after the previous page, in the order of the
// listing. It returns nil if the listing has a filter, or no index of the table has this order.
func (l *listing[S, R]) indexed(t *projections.Table[S], account string) iter.Seq[*projections.Row[S]] {
	switch {
	case l.keep != nil || l.matches != nil || len(l.keys) > 1:
		return nil
	case len(l.keys) == 0 && l.after == nil:
		return t.In(account)
	case len(l.keys) == 0:
		return t.NamedAfter(account, l.after.name)
	case l.keys[0].index != createTimeIndex:
		return nil
	}
	var after *projections.Row[S]
	if l.after != nil {
		after = &projections.Row[S]{Name: l.after.name, CreateTime: l.after.values[0].time}
	}
	if l.keys[0].descending {
		return t.CreatedBefore(account, after)
	}
	return t.CreatedAfter(account, after)
}

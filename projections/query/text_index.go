package query

import (
	"math"
	"slices"
	"strings"
	"unsafe"
)

// A textIndex holds the texts of a block's rows, for searches of words. A text that several rows have
// is in it once. Letters of texts are in lower case, as far as they are ASCII.
type textIndex struct {
	dependent *rowSet  // rows whose texts are not in the index, because they depend on more than the row
	ascii     bool     // all texts are ASCII
	prefix    string   // beginning of the names of all rows
	names     textList // the rest of each row's name; "" for rows that are not in named
	named     rowSet   // rows of whose texts one is the name
	shared    textList // other texts of several rows
	rows      []rowSet // the rows with each text in shared
	single    textList // other texts of one row
	row       []uint8  // the row with each text in single
}

// A textList is a list of texts, with a separator before each.
type textList struct {
	all  string
	ends []uint16 // end of each text in all
}

const (
	separator = "\x00"
	// maxIndexText is the maximum size of the different texts of a block, in bytes for each row, for
	// which a textIndex is made.
	maxIndexText = 256
)

// A textIndexKey is the key of the textIndex for Block.Derive.
type textIndexKey struct{ root *field }

// textIndex returns the index of the texts of the fields in searchLocal, for the block that the scan
// of s considers; nil if its texts are too large.
func (c *scope) textIndex(s *candidate) *textIndex {
	return s.scan.derive(textIndexKey{c.root}, func() any { return c.newTextIndex(s) }).(*textIndex)
}

func (c *scope) newTextIndex(s *candidate) *textIndex {
	var texts []string
	inRow, inWire := c.searchLocal(func(text string) bool {
		texts = append(texts, text)
		return false // visits all texts
	})
	visit, whens := join(append(inRow, inWire...), true).row, c.whens()
	ix, names, rows := &textIndex{ascii: true}, make([]string, s.length), map[string]*rowSet{}
	s.scan.each(func(i int, row unsafe.Pointer, name string) {
		if slices.ContainsFunc(whens, func(when func(unsafe.Pointer) bool) bool { return when(row) }) {
			addTo(&ix.dependent, i)
			return
		}
		if ix.prefix == "" {
			ix.prefix = lowerASCII(name[:strings.LastIndex(name, "/")+1])
		}
		texts = texts[:0]
		visit(s)
		for _, text := range texts {
			lower := lowerASCII(text)
			ix.ascii = ix.ascii && isASCII(lower)
			if rest, ok := strings.CutPrefix(lower, ix.prefix); ok && text == name {
				names[i] = rest
				ix.named.add(i)
				continue
			}
			if rows[lower] == nil {
				rows[lower] = &rowSet{}
			}
			rows[lower].add(i)
		}
	})
	if !ix.fill(names, rows) {
		return nil
	}
	return ix
}

// whens returns the functions that report whether a field in searchLocal depends on more than the row.
func (c *scope) whens() (all []func(unsafe.Pointer) bool) {
	for _, top := range c.root.ordered {
		_, renderer := c.source(top)
		if d := c.dependence(top.name, renderer); d != nil && d.when != nil {
			all = append(all, d.when)
		}
	}
	return all
}

// fill sets the lists of the index. rows has the rows with each text but the names. It returns false if
// the texts are too large.
func (ix *textIndex) fill(names []string, rows map[string]*rowSet) bool {
	var single, shared []string
	for text, in := range rows {
		if i, one := in.only(); one {
			single, ix.row = append(single, text), append(ix.row, uint8(i))
		} else {
			shared, ix.rows = append(shared, text), append(ix.rows, *in)
		}
	}
	ix.row, ix.rows = slices.Clip(ix.row), slices.Clip(ix.rows)
	fits := true
	for list, texts := range map[*textList][]string{&ix.names: names, &ix.single: single, &ix.shared: shared} {
		fits = list.fill(texts, maxIndexText*len(names)) && fits
	}
	return fits
}

func (l *textList) fill(texts []string, limit int) bool {
	size := 0
	for _, text := range texts {
		size += len(separator) + len(text)
	}
	if size > limit || size > math.MaxUint16 {
		return false
	}
	var all strings.Builder
	all.Grow(size)
	l.ends = make([]uint16, len(texts))
	for i, text := range texts {
		all.WriteString(separator)
		all.WriteString(text)
		l.ends[i] = uint16(all.Len())
	}
	l.all = all.String()
	return true
}

// finds reports whether find finds all rows with a word.
func (ix *textIndex) finds(w *word) bool {
	for _, piece := range w.pieces {
		if strings.Contains(piece, separator) {
			return false
		}
	}
	return w.simple && w.pieces[1] != "" || ix.ascii
}

// find returns the rows, of those that are not dependent, with a text that contains the word.
func (ix *textIndex) find(w *word) (rows rowSet) {
	if w.simple && w.pieces[1] != "" {
		ix.findText(w.pieces[1], &rows)
		return rows
	}
	for i := range ix.shared.ends {
		if matchesPattern(ix.shared.at(i), w.pieces) {
			rows.addAll(&ix.rows[i])
		}
	}
	for i := range ix.single.ends {
		if matchesPattern(ix.single.at(i), w.pieces) {
			rows.add(int(ix.row[i]))
		}
	}
	ix.findNames(w, &rows)
	return rows
}

// findNames adds the rows whose name contains the word. It searches the beginning of all names once.
func (ix *textIndex) findNames(w *word, rows *rowSet) {
	left, pieces := ix.prefix, w.pieces[1:len(w.pieces)-1]
	for len(pieces) > 0 {
		_, after, found := strings.Cut(left, pieces[0])
		if !found {
			break
		}
		left, pieces = after, pieces[1:]
	}
	if len(pieces) == 0 {
		rows.addAll(&ix.named)
		return
	}
	for len(left) > 0 && (len(left) >= len(pieces[0]) || !strings.HasPrefix(pieces[0], left)) {
		left = left[1:] // the next piece cannot begin here
	}
	for i := range ix.names.ends { // rows that are not in named have an empty rest
		rest := ix.names.at(i)
		if left != "" {
			rest = left + rest
		}
		if ix.named.has(i) && containsInOrder(rest, pieces) {
			rows.add(i)
		}
	}
}

// findText adds the rows with a text that contains the text of a simple word.
func (ix *textIndex) findText(text string, rows *rowSet) {
	ix.shared.each(text, func(i int) { rows.addAll(&ix.rows[i]) })
	ix.single.each(text, func(i int) { rows.add(int(ix.row[i])) })
	if strings.Contains(ix.prefix, text) {
		rows.addAll(&ix.named)
		return
	}
	named := func(i int) { rows.add(i) } // rows that are not in named have an empty rest
	ix.names.each(text, named)
	for k := 1; k < len(text); k++ { // the text begins in the prefix
		if strings.HasSuffix(ix.prefix, text[:k]) {
			ix.names.each(separator+text[k:], named)
		}
	}
}

func (l *textList) at(i int) string {
	begin := 0
	if i > 0 {
		begin = int(l.ends[i-1])
	}
	return l.all[begin+len(separator) : l.ends[i]]
}

// each calls f for each text that contains a part, which may begin with the separator.
func (l *textList) each(part string, f func(i int)) {
	for from, i := 0, 0; ; {
		at := strings.Index(l.all[from:], part)
		if at < 0 {
			return
		}
		for int(l.ends[i]) <= from+at {
			i++
		}
		f(i)
		from = int(l.ends[i])
	}
}

// only returns the row of a set that has a single row; otherwise it returns false.
func (s *rowSet) only() (i int, found bool) {
	s.each(func(at int) { i = at })
	return i, s.count() == 1
}

// lowerASCII returns a text with the ASCII letters in lower case.
func lowerASCII(s string) string {
	if !strings.ContainsFunc(s, func(r rune) bool { return 'A' <= r && r <= 'Z' }) {
		return s
	}
	b := []byte(s)
	for i, c := range b {
		if 'A' <= c && c <= 'Z' {
			b[i] = c + 'a' - 'A'
		}
	}
	return string(b)
}

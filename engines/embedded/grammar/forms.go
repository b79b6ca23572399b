package grammar

import (
	"slices"
	"strings"
)

// objects returns an expression that matches the objects that conform to all schemas.
func (k *schemaKit) objects(all []*schema) expr {
	var names []string
	required := map[string]bool{}
	declares, closed, open := false, false, []*value(nil)
	for _, s := range all {
		for _, m := range s.object.properties {
			names = append(names, m.name)
		}
		for _, name := range s.object.required {
			required[name] = true
		}
		names = append(names, s.object.only...)
		declares, closed = declares || s.object.declares, closed || s.object.only != nil
		if more := s.object.additional; more != nil {
			closed = closed || k.read(more).never
			open = append(open, more)
		}
	}
	for _, s := range all { // required properties that properties does not list come last
		names = append(names, s.object.required...)
	}
	names = distinct(names)
	var members []property
	for _, name := range names {
		e, possible := k.property(all, name)
		if !possible && required[name] {
			return never
		}
		if possible {
			members = append(members, property{seq(text(quoted(name)+":"), space(), e), required[name]})
		}
	}
	if !closed && (len(open) > 0 || !declares) {
		more := k.value()
		if len(open) > 0 {
			more = k.form(k.all(open, nil))
		}
		extra := seq(otherKeys(names), text(":"), space(), more)
		return braces(members, seq(extra, repeat(seq(text(","), space(), extra), 0, unbounded)))
	}
	return braces(members, nil)
}

// property returns an expression that matches the values of a property that conform to all schemas.
// possible is false if a schema forbids the property.
func (k *schemaKit) property(all []*schema, name string) (e expr, possible bool) {
	var places []*value
	for _, s := range all {
		if s.object.only != nil && !slices.Contains(s.object.only, name) {
			return nil, false
		}
		own := s.object.additional
		for _, m := range s.object.properties {
			if m.name == name {
				own = m.value
			}
		}
		if own != nil && k.read(own).never {
			return nil, false
		}
		if own != nil {
			places = append(places, own)
		}
	}
	if len(places) == 0 {
		return k.value(), true
	}
	return k.form(k.all(places, nil)), true
}

func distinct(names []string) []string {
	seen := map[string]bool{}
	return kept(names, func(name string) bool {
		known := seen[name]
		seen[name] = true
		return !known
	})
}

// A property is a member of an object: an expression for its name and its value.
type property struct {
	member   expr
	required bool
}

// braces returns an expression that matches an object with members in this order. extra matches
// additional members after them; nil allows none.
func braces(members []property, extra expr) expr {
	return func(b *builder, next int32) int32 {
		end := seq(space(), text("}"))(b, next)
		empty := text("}")(b, next)
		comma := seq(text(","), space())
		first, later := empty, end // nodes for what may follow the opening brace, and a member
		if extra != nil {
			first = b.add(node{op: opSplit, split: []int32{extra(b, end), empty}})
			later = b.add(node{op: opSplit, split: []int32{seq(comma, extra)(b, end), end}})
		}
		for _, m := range slices.Backward(members) {
			now := m.member(b, later)
			after := comma(b, now)
			if m.required {
				first, later = now, after
				continue
			}
			first = b.add(node{op: opSplit, split: []int32{now, first}})
			later = b.add(node{op: opSplit, split: []int32{after, later}})
		}
		return seq(text("{"), space())(b, first)
	}
}

// otherKeys returns an expression that matches a quoted key without escapes that is not in names.
func otherKeys(names []string) expr {
	return func(b *builder, next int32) int32 {
		quote := text(`"`)(b, next)
		free := b.add(node{op: opSplit})
		b.nodes[free].split = []int32{runes(plainChars)(b, free), quote}
		var taken [][]rune
		for _, name := range names {
			if !strings.ContainsFunc(name, func(r rune) bool { return !plainChars.has(r) }) {
				taken = append(taken, []rune(name))
			}
		}
		return text(`"`)(b, b.avoid(taken, free, quote))
	}
}

// avoid returns a node that matches the keys that are not in taken. A key that differs from all of
// these leaves their prefix tree and continues at the node free. The node quote matches the end of
// a key. In recursive calls, taken has the rest of the keys after their common prefix.
func (b *builder) avoid(taken [][]rune, free, quote int32) int32 {
	if len(taken) == 0 {
		return b.add(node{op: opSplit, split: []int32{free, quote}})
	}
	groups := map[rune][][]rune{}
	var order []rune
	ends := false
	for _, name := range taken {
		if len(name) == 0 {
			ends = true
			continue
		}
		if groups[name[0]] == nil {
			order = append(order, name[0])
		}
		groups[name[0]] = append(groups[name[0]], name[1:])
	}
	var own []span
	var split []int32
	for _, r := range order {
		own = append(own, span{r, r})
		split = append(split, runes(one(r))(b, b.avoid(groups[r], free, quote)))
	}
	if other := plainChars.without(newClass(own...)); len(other) > 0 {
		split = append(split, runes(other)(b, free))
	}
	if !ends {
		split = append(split, quote)
	}
	return b.add(node{op: opSplit, split: split})
}

// arrays returns an expression that matches the arrays that conform to all schemas.
func (k *schemaKit) arrays(all []*schema) expr {
	minCount, maxCount, long := 0, unbounded, 0
	for _, s := range all {
		minCount, long = max(minCount, s.array.min), max(long, len(s.array.first))
		if s.array.max != unbounded && (maxCount == unbounded || s.array.max < maxCount) {
			maxCount = s.array.max
		}
	}
	item := func(i int) expr {
		var places []*value
		for _, s := range all {
			switch {
			case i < len(s.array.first):
				places = append(places, s.array.first[i])
			case s.array.rest != nil:
				places = append(places, s.array.rest)
			}
		}
		if len(places) == 0 {
			return k.value()
		}
		return k.form(k.all(places, nil))
	}
	if maxCount != unbounded && maxCount < minCount {
		return never
	}
	var first []expr
	for i := range long {
		first = append(first, item(i))
	}
	return array(first, item(long), minCount, maxCount)
}

// texts returns an expression that matches the strings that conform to all schemas.
func (k *schemaKit) texts(all []*schema) expr {
	minCount, maxCount := 0, unbounded
	var parts []condition
	for _, s := range all {
		minCount = max(minCount, s.text.min)
		if s.text.max != unbounded && (maxCount == unbounded || s.text.max < maxCount) {
			maxCount = s.text.max
		}
		for i, pattern := range s.text.patterns {
			own, err := readPattern(pattern)
			k.require(err == nil, s.text.at[i], "%v", err)
			parts = append(parts, own...)
		}
	}
	if minCount > 0 || maxCount != unbounded || len(parts) == 0 {
		parts = append(parts, condition{e: repeat(char(), minCount, maxCount)})
	}
	inside := parts[0].e
	if len(parts) > 1 || parts[0].not {
		inside = k.intersect(parts)
	}
	return seq(text(`"`), inside, text(`"`))
}

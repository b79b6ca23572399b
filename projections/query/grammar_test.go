package query

import (
	"math"
	"slices"
	"testing"
	"time"

	"anneal/projections/toytest"

	"github.com/stretchr/testify/require"
)

// nested is a wire type with fields inside lists, maps, and maps in lists.
type nested struct {
	Name    string                       `json:"name"`
	Big     uint64                       `json:"big"`
	Plain   uint                         `json:"plain"`
	On      bool                         `json:"on"`
	Maps    []map[string]int             `json:"maps"`
	Lists   [][]int                      `json:"lists"`
	ByKey   map[string]nestedPart        `json:"byKey"`
	Many    map[string][]string          `json:"many"`
	Deep    map[string]map[string]string `json:"deep"`
	Parts   []nestedGroup                `json:"parts"`
	Times   []time.Time                  `json:"times"`
	Waits   map[string]time.Duration     `json:"waits"`
	Nothing *nestedPart                  `json:"nothing"`
}

type nestedPart struct {
	Key string     `json:"key"`
	N   int        `json:"n"`
	At  *time.Time `json:"at"`
}

type nestedGroup struct {
	In   []nestedPart      `json:"in"`
	Tags map[string]string `json:"tags"`
	One  *nestedPart       `json:"one"`
}

var nestedFields = FieldsOf[nested]()

func newNested() *nested {
	at := toytest.Epoch
	return &nested{Name: `C:\a and "b"`, Big: math.MaxUint64, Plain: 7,
		Maps: []map[string]int{{"q": 1}, {"r": 2}}, Lists: [][]int{{1}, {2, 3}},
		ByKey: map[string]nestedPart{"x": {Key: "kk", N: 3}, "AND": {Key: "word"}, "5": {Key: "five"},
			"a.b": {Key: "dotted"}},
		Many: map[string][]string{"k": {"a", "b"}}, Deep: map[string]map[string]string{"a": {"b": "c"}},
		Parts: []nestedGroup{{In: []nestedPart{{Key: "i", N: 9, At: &at}}, Tags: map[string]string{"t": "v"}},
			{One: &nestedPart{Key: "at", N: 4}}},
		Times: []time.Time{toytest.Epoch, toytest.Epoch.Add(time.Hour)},
		Waits: map[string]time.Duration{"first": 90 * time.Second}}
}

// TestGrammar checks that filters follow the rules of AIP-160 for nested fields.
func TestGrammar(t *testing.T) {
	for _, c := range []struct {
		filter string
		want   bool
	}{
		{`byKey.x.key = kk`, true},
		{`by_key.x.n > 2`, true},
		{`byKey.AND.key = word`, true},
		{`byKey.5.key = five`, true},
		{`byKey."a.b".key:DOT`, true},
		{`byKey:x`, true},
		{`byKey:y`, false},
		{`byKey.y:*`, false},
		{`byKey.y.key = kk`, false},
		{`byKey.y.key != kk`, true},
		{`many.k:a`, true},
		{`many.k:c`, false},
		{`many.k:*`, true},
		{`many:k`, true},
		{`maps.q:1`, true},
		{`maps.q:2`, false},
		{`maps:q`, true},
		{`maps:s`, false},
		{`lists:3`, true},
		{`lists:4`, false},
		{`lists:*`, true},
		{`deep.a.b = c`, true},
		{`deep.a:b`, true},
		{`deep.b:b`, false},
		{`parts.in.n:9`, true},
		{`parts.in.n:4`, false},
		{`parts.in.key:I`, true},
		{`parts.in.at:"2026-03-01T12:00:00Z"`, true},
		{`parts.in:*`, true},
		{`parts.tags:t`, true},
		{`parts.tags:u`, false},
		{`parts.tags.t:v`, true},
		{`parts.one.n:4`, true},
		{`parts.one.key:*`, true},
		{`times:"2026-03-01T13:00:00Z"`, true},
		{`times:2026-03-01`, false},
		{`waits.first > 1m`, true},
		{`waits.first = 1.5m`, true},
		{`waits.second > 1m`, false},
		{`nothing:*`, false},
		{`nothing.n = 0`, false},
		{`nothing.n != 0`, true},
		{`big >= 9223372036854775807`, true},
		{`big > 1e18`, true},
		{`big > -1`, true},
		{`big < 1e3`, false},
		{`plain = 7`, true},
		{`plain >= 7.5`, false},
		{"on = false\n\tAND plain = 7", true},
		{`on : false`, true},
		{`on=false plain=7 OR plain=8`, true},
		{`on = true OR plain = 8 OR plain = 7`, true},
		{`on = (true OR false)`, true},
		{`name = "C:\\a*"`, true},
		{`name = C:\a*`, true},
		{`name = "*\"b\""`, true},
		{`name:'"b"'`, true},
		{`name = "C:\u005ca*"`, true},
		{`"and"`, true},
		{`name:and`, true},
	} {
		matches, err := nestedFields.Filter(c.filter)
		require.NoError(t, err, c.filter)
		require.Equal(t, c.want, matches(newNested()), c.filter)
	}
}

func TestGrammarErrors(t *testing.T) {
	for _, c := range []struct{ filter, says string }{
		{`on = true and plain = 7`,
			`and in lower case is not an operator: write AND, or "and" in quotes to search for the word`},
		{`on = true or plain = 7`, `or in lower case is not an operator`},
		{`not on = true`, `not in lower case is not an operator`},
		{`name = "\x"`, `has a syntax error at character 8: unknown escape: write \\ for a backslash`},
		{`on = true AND `, `has a syntax error at character 11: a term is expected after AND`},
		{`on = true OR`, `has a syntax error at character 11: a term is expected after OR`},
		{`NOT (on = true`, `has a syntax error at character 15: a closing parenthesis is expected here`},
		{`many.k = a`, `many.k is a list: use many.k:VALUE`},
		{`maps.q = 1`, `maps.q is in a list: use maps.q:VALUE`},
		{`maps.q:many`, `maps.q is a whole number: it cannot be compared with "many"`},
		{`lists:many`, `lists is a whole number: it cannot be compared with "many"`},
		{`byKey = x`, `byKey is a map: use byKey:KEY`},
		{`byKey.x = kk`, `byKey.x is an object: compare one of its fields, key, n, at`},
		{`byKey.x.colour = kk`, `there is no field "byKey.x.colour"; the fields are key, n, at`},
		{`parts.in:i`, `parts.in is a list of objects: compare one of their fields, key, n, at, as in parts.in.key:VALUE`},
		{`parts.in.at:soon`, `parts.in.at is a time`},
		{`big = -x`, `big is a whole number: it cannot be compared with "-x"`},
	} {
		_, err := nestedFields.Filter(c.filter)
		require.ErrorContains(t, err, c.says, c.filter)
	}
}

func TestOrderByNested(t *testing.T) {
	all := []nested{
		{Name: "a", Big: 3, ByKey: map[string]nestedPart{"x": {N: 0}}},
		{Name: "b", Big: math.MaxUint64, ByKey: map[string]nestedPart{"x": {N: -1}}},
		{Name: "c", Big: 1, ByKey: map[string]nestedPart{"x": {N: -2}}, Nothing: &nestedPart{}},
	}
	for orderBy, want := range map[string]string{
		"big": "cab", "big desc": "bac", "by_key.x.n": "cba", " byKey.none.n , name  desc": "cba", "nothing.n": "abc",
		"nothing.n desc": "cab", "on": "abc"} {
		order, err := nestedFields.Order(orderBy, "")
		require.NoError(t, err)
		shown := slices.Clone(all)
		slices.SortStableFunc(shown, func(a, b nested) int {
			for _, key := range order.keys {
				if c := key.compare(key.read(renderedCandidate(&a)), key.read(renderedCandidate(&b))); c != 0 {
					return c
				}
			}
			return 0
		})
		require.Equal(t, want, shown[0].Name+shown[1].Name+shown[2].Name, orderBy)
	}
}

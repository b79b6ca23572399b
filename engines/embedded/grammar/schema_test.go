package grammar

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestSchemas(t *testing.T) {
	for name, c := range map[string]struct {
		schema   string
		yes, not []string
	}{
		"anything": {
			`{}`, []string{`1`, `{"a": [null, "x"]}`, `true`, `""`}, []string{``, `{`, `[1,]`, `tru`, `"` + "\n" + `"`},
		},
		"strings": {
			`{"type":"string"}`, []string{`"a\n\u00e9\ud83d\ude00🙂\/"`}, []string{`"\ud83d"`, `"\x"`, `"a`, `1`},
		},
		"layout": {
			`{"type":"object","properties":{"a":{"type":"array"}}}`,
			[]string{"{\n  \"a\": [\n    1,\n    2\n  ]\n}", `{"a":[1,2]}`, `{ "a": [ ] }`},
			[]string{`{  "a":[]}`, "{\n\n\"a\":[]}", `{"a" :[]}`, "{}\n", "{\t}"},
		},
		"numbers": {
			`{"type":"number"}`, []string{`0`, `-1.50`, `1e9`, `2E-10`},
			[]string{`01`, `1.`, `+1`, `.5`, `1e`, strings.Repeat("9", 99)},
		},
		"integers": {`{"type":"integer"}`, []string{`0`, `-12`, `999999999999999`}, []string{`1.0`, `-0`, `1e3`}},
		"bounds": {
			`{"type":"integer","minimum":-12,"exclusiveMaximum":205}`, []string{`-12`, `-1`, `0`, `9`, `99`, `204`, `130`},
			[]string{`-13`, `205`, `1000`, `00`, `-0`},
		},
		"one bound": {`{"type":"integer","minimum":97}`, []string{`97`, `100`, `123456`}, []string{`96`, `-5`, `0`}},
		"bounds of zod": {
			`{"type":"integer","minimum":-9007199254740991,"maximum":9007199254740991}`,
			[]string{`9007199254740991`, `-9007199254740991`, `5`}, []string{`9007199254740992`},
		},
		"numbers between": {
			`{"type":"number","minimum":0,"maximum":1}`, []string{`0`, `0.25`, `1`, `0.0`}, []string{`1.5`, `-0.5`, `2`, `1e0`},
		},
		"above 0": {
			`{"type":"number","exclusiveMinimum":0}`, []string{`0.01`, `1`, `12.5`}, []string{`0`, `0.0`, `-1`},
		},
		"below 0": {`{"type":"number","maximum":-1}`, []string{`-1`, `-1.5`, `-20`}, []string{`0`, `-0.5`, `1`}},
		"enum": {
			`{"enum":["a","ab","b\"",1,null,{"x":[1,true]}]}`, []string{`"a"`, `"ab"`, `"b\""`, `1`, `null`, `{"x":[1,true]}`},
			[]string{`"abc"`, `{}`, `11`},
		},
		"enum of a type": {`{"type":["string","null"],"enum":["a",1,null]}`, []string{`"a"`, `null`}, []string{`1`}},
		"const":          {`{"const":"x"}`, []string{`"x"`}, []string{`"y"`, `x`}},
		"nullable":       {`{"type":["integer","null"],"minimum":3}`, []string{`3`, `null`}, []string{`2`, `"3"`}},
		"properties": {
			`{"type":"object","properties":{"a":{"type":"null"},"b":{"type":"null"},"c":{"type":"null"}},"required":["b"]}`,
			[]string{`{"b":null}`, `{"a":null,"b":null,"c":null}`, `{"b":null,"c":null}`},
			[]string{`{}`, `{"a":null}`, `{"b":null,"a":null}`, `{"b":null,"x":1}`, `{,"b":null}`},
		},
		"no more": {
			`{"properties":{"a":{"type":"null"}},"additionalProperties":false}`, []string{`{}`, `{"a":null}`},
			[]string{`{"b":1}`, `1`},
		},
		"more": {
			`{"type":"object","properties":{"aé":{"type":"null"},"ab":{"type":"null"}},` +
				`"additionalProperties":{"type":"boolean"}}`,
			[]string{`{}`, `{"aé":null,"x":true}`, `{"":true,"a":false,"aê":true,"abc":true}`},
			[]string{`{"ab":true}`, `{"x":1}`, `{"x":true,"aé":null}`, `{"\u0061b":true}`},
		},
		"required alone": {
			`{"required":["k"]}`, []string{`{"k":[1]}`, `{"k":1,"other":2}`}, []string{`{}`, `{"other":2}`},
		},
		"a list": {
			`{"items":{"type":"boolean"},"minItems":1,"maxItems":2}`, []string{`[true]`, `[true, false]`},
			[]string{`[]`, `[true,true,true]`, `[1]`},
		},
		"first items": {
			`{"prefixItems":[{"const":1},{"const":2}],"items":false,"minItems":1}`, []string{`[1]`, `[1,2]`},
			[]string{`[]`, `[2]`, `[1,2,3]`},
		},
		"more items": {
			`{"prefixItems":[{"const":1}],"items":{"const":0},"minItems":3,"maxItems":3}`, []string{`[1,0,0]`},
			[]string{`[1,0]`, `[1,0,0,0]`},
		},
		"no items": {`{"type":"array","maxItems":0}`, []string{`[]`}, []string{`[1]`}},
		"lengths": {
			`{"type":"string","minLength":2,"maxLength":3}`, []string{`"é🙂"`, `"\u00e9\ud83d\ude00x"`},
			[]string{`"a"`, `"abcd"`, `"\ud83d\ude00"`},
		},
		"any of": {
			`{"anyOf":[{"type":"string"},{"type":"integer","minimum":5}]}`, []string{`"x"`, `5`}, []string{`4`, `null`},
		},
		"any of, beside": {
			`{"type":"object","properties":{"a":{"const":1},"b":{"const":2}},"anyOf":[{"required":["a"]},{"required":["b"]}]}`,
			[]string{`{"a":1}`, `{"b":2}`, `{"a":1,"b":2}`}, []string{`{}`},
		},
		"one of": {
			`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"},"x":{"type":"null"}},` +
				`"required":["k"]},{"type":"object","properties":{"k":{"enum":["b","c"]}},"required":["k"]},{"type":"null"}]}`,
			[]string{`{"k":"a","x":null}`, `{"k":"c"}`, `null`}, []string{`{"k":"b","x":null}`, `{}`},
		},
		"all of": {
			`{"allOf":[{"type":"object","properties":{"a":{"minimum":3}},"required":["a"]},` +
				`{"properties":{"a":{"type":"integer","maximum":4},"b":{"type":"null"}}}]}`,
			[]string{`{"a":3}`, `{"a":4,"b":null}`}, []string{`{"a":5}`, `{"b":null}`},
		},
		"recursion": {
			`{"$ref":"#/$defs/tree","$defs":{"tree":{"type":"object","properties":{"kids":{"type":"array",` +
				`"items":{"$ref":"#/$defs/tree"}}},"required":["kids"]}}}`,
			[]string{`{"kids":[]}`, `{"kids":[{"kids":[{"kids":[]}]}]}`}, []string{`{"kids":[1]}`, `{}`},
		},
		"its own root": {
			`{"type":"object","properties":{"next":{"anyOf":[{"$ref":"#"},` +
				`{"type":"null"}]}},"required":["next"],"additionalProperties":false}`,
			[]string{`{"next":null}`, `{"next":{"next":null}}`}, []string{`{}`},
		},
		"ref and beside": {
			`{"$ref":"#/$defs/a","description":"d","maximum":5,"$defs":{"a":{"type":"integer","minimum":3}}}`,
			[]string{`3`, `5`}, []string{`2`, `6`},
		},
		"pattern": {
			`{"type":"string","pattern":"^[A-Z]{2}-\\d+$"}`, []string{`"AB-12"`}, []string{`"AB-"`, `"xAB-1"`},
		},
		"found within": {`{"pattern":"a+b"}`, []string{`"ab"`, `"xxaaby"`}, []string{`"ba"`}},
		"formats, restated": {
			`{"anyOf":[{"format":"duration","pattern":"^P(?:(\\d+W)|(?!.*W)` +
				`(?=\\d|T\\d)(\\d+Y)?(\\d+M)?(\\d+D)?(T(?=\\d)(\\d+H)?(\\d+M)?(\\d+([.,` +
				`]\\d+)?S)?)?)$"},{"format":"hostname","pattern":"^(?=.{1,253}\\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,` +
				`61}[a-zA-Z0-9])?(?:\\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,61}[0-9a-zA-Z])?)*\\.?$"}]}`,
			[]string{`"P1Y2DT3H"`, `"P2W"`, `"a.example"`}, []string{`"P "`, `"a..b"`, `""`},
		},
		"escaped":   {`{"pattern":"^[\"\\\\\\n]{3}$"}`, []string{`"\"\\\n"`}, []string{`"""`, `"abc"`}},
		"ends":      {`{"pattern":"^a|b$"}`, []string{`"ax"`, `"xb"`}, []string{`"xa"`}},
		"no blanks": {`{"pattern":"^\\S$"}`, []string{`"x"`}, []string{`" "`, `"` + "\u00a0" + `"`}},
		"look ahead": {
			`{"pattern":"^(?!\\.)(?!.*\\.\\.)([a-z.]*)$"}`, []string{`""`, `"a.b"`, `"a."`}, []string{`".a"`, `"a..b"`},
		},
		"with a length": {
			`{"pattern":"^a*b$","minLength":3,"maxLength":4}`, []string{`"aab"`, `"aaab"`}, []string{`"ab"`, `"aaaab"`},
		},
		"dates": {
			`{"format":"date"}`, []string{`"2024-02-29"`, `"2026-12-31"`, `"2000-02-29"`},
			[]string{`"2023-02-29"`, `"1900-02-29"`, `"2024-04-31"`, `"2024-13-01"`},
		},
		"times": {
			`{"format":"date-time"}`, []string{`"2026-11-22T01:02:03Z"`, `"2026-11-22T23:59:59.123+05:30"`},
			[]string{`"2026-11-22"`, `"2026-11-22T24:00:00Z"`},
		},
		"uuids": {
			`{"format":"uuid"}`, []string{`"123e4567-e89b-12d3-a456-426614174000"`},
			[]string{`"123e4567e89b12d3a456426614174000"`},
		},
		"addresses": {`{"format":"ipv4"}`, []string{`"255.0.10.199"`}, []string{`"256.1.1.1"`, `"01.1.1.1"`}},
		"annotations": {
			`{"title":"t","type":"null","default":5,"x-own":{"minProperties":3},"$schema":"s","$id":"i"}`, []string{`null`},
			[]string{`5`},
		},
		"named in a list": {
			`{"type":"object","propertyNames":{"type":"string","enum":["a",` +
				`"b"]},"additionalProperties":{"type":"boolean"},"required":["b"]}`,
			[]string{`{"b":true}`, `{"a":true,"b":false}`}, []string{`{}`, `{"a":true}`, `{"b":true,"c":true}`, `{"b":1}`},
		},
		"named and listed": {
			`{"properties":{"a":{"const":1},"c":{"const":3}},"propertyNames":{"enum":["a","b"]}}`,
			[]string{`{}`, `{"a":1}`, `{"a":1,"b":[]}`}, []string{`{"c":3}`, `{"a":2}`},
		},
		"older tuples": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","type":"array",` +
				`"items":[{"const":1},{"const":2}],"additionalItems":false,"minItems":2}`,
			[]string{`[1,2]`}, []string{`[1]`, `[2,1]`, `[1,2,3]`},
		},
		"older tuples, more": {
			`{"$schema":"http://json-schema.org/draft-07/schema#","additionalItems":{"const":0},` +
				`"items":[{"const":1}],"minItems":1}`,
			[]string{`[1]`, `[1,0,0]`}, []string{`[]`, `[1,1]`},
		},
		"a known pattern": {
			`{"type":"string","format":"lowercase","pattern":"^[^A-Z]*$"}`, []string{`"a1"`}, []string{`"aB"`},
		},
		"nothing": {`{"type":"array","items":{"not":{}}}`, []string{`[]`}, []string{`[1]`}},
		"true":    {`true`, []string{`1`}, nil},
		"uneven types": {
			`{"allOf":[{"type":["number","string"]},{"type":["integer","string","null"]}]}`, []string{`1`, `"a"`},
			[]string{`1.5`, `null`},
		},
	} {
		t.Run(name, func(t *testing.T) {
			g, err := Schema([]byte(c.schema), "format")
			require.NoError(t, err)
			equalInGBNF(t, g, slices.Concat(c.yes, c.not))
			for _, s := range c.yes {
				require.True(t, accepts(t, g, s), s)
				conforms(t, c.schema, s)
			}
			for _, s := range c.not {
				require.False(t, accepts(t, g, s), s)
			}
			r := rand.New(rand.NewPCG(1, 2))
			for range 20 {
				if text, whole := write(t, g, r, 500); whole {
					conforms(t, c.schema, text)
				}
			}
		})
	}
}

// conforms requires that an independent validator accepts text as JSON that conforms to schema,
// including formats.
func conforms(t testing.TB, schema, text string) {
	t.Helper()
	value, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
	require.NoError(t, err, "%s", text)
	require.NoError(t, compiled(t, schema).Validate(value), "%s\nby %s", text, schema)
}

func compiled(t testing.TB, schema string) *jsonschema.Schema {
	t.Helper()
	var source any
	source, err := jsonschema.UnmarshalJSON(strings.NewReader(plain.Replace(schema)))
	require.NoError(t, err)
	c := jsonschema.NewCompiler()
	c.AssertFormat()
	require.NoError(t, c.AddResource("schema.json", source))
	s, err := c.Compile("schema.json")
	require.NoError(t, err, schema)
	return s
}

// plain removes what the independent validator does not support from a schema: lookaheads, and
// one $schema with its $id.
var plain = strings.NewReplacer(`(?!.*W)(?=\\d|T\\d)`, ``, `T(?=\\d)`, `T`, `(?=.{1,253}\\.?$)`, ``,
	`(?!\\.)(?!.*\\.\\.)`, ``, `"$schema":"s","$id":"i"`, `"$comment":""`)

func TestInvalidSchemas(t *testing.T) {
	for name, c := range map[string]struct{ schema, want string }{
		"no JSON":   {`{"type":`, "format: the schema is not JSON"},
		"two":       {`{} {}`, "trailing data after its JSON value"},
		"no schema": {`5`, "# must be a schema"},
		"twice":     {`{"type":"null","type":"null"}`, `# has the key "type" twice`},
		"by its path": {
			`{"properties":{"a/b":{"items":{"minProperties":1}}}}`, "#/properties/a~1b/items/minProperties cannot be enforced",
		},
		"not":          {`{"not":{"type":"null"}}`, "#/not cannot be enforced"},
		"not anything": {`{"not":true}`, "no finite text conforms"},
		"names by a rule": {
			`{"propertyNames":{"pattern":"^a"}}`, "#/propertyNames cannot be enforced: list the names in an enum",
		},
		"more of no tuple": {
			`{"items":{},"additionalItems":false}`, "#/additionalItems has an effect only if items is an array",
		},
		"tuples of both":  {`{"items":[{}],"prefixItems":[{}]}`, "#/items must be a schema if prefixItems is present"},
		"if":              {`{"if":{},"then":{}}`, "#/then cannot be enforced"},
		"unique items":    {`{"uniqueItems":true}`, "#/uniqueItems cannot be enforced"},
		"multiples":       {`{"type":"integer","multipleOf":5}`, "#/multipleOf cannot be enforced"},
		"fractions":       {`{"minimum":0.5}`, "#/minimum must be an integer"},
		"formats":         {`{"format":"iri"}`, `#/format "iri" cannot be enforced: use date, `},
		"look behind":     {`{"pattern":"^a(?=b)"}`, "#/pattern cannot be enforced"},
		"word boundary":   {`{"pattern":"\\bword"}`, "#/pattern cannot be enforced"},
		"a long pattern":  {`{"pattern":"` + strings.Repeat("a", 5000) + `"}`, "#/pattern has 5000 bytes"},
		"pattern, length": {`{"pattern":"^(a|b)*a(a|b){12}$","maxLength":500}`, "patterns and lengths"},
		"a type":          {`{"type":"text"}`, "#/type must be one of object, array"},
		"a reference":     {`{"$ref":"#/$defs/x"}`, `#/$ref refers to "#/$defs/x"`},
		"far reference":   {`{"$ref":"https://example.com/a"}`, "#/$ref must refer to a part of this schema"},
		"overlap": {
			`{"oneOf":[{"type":"number"},{"type":"integer"}]}`,
			"#/oneOf has alternatives that may both match, #/oneOf/0 and #/oneOf/1",
		},
		"objects overlap": {
			`{"oneOf":[{"type":"object","properties":{"k":{"const":"a"}}},{"type":"object","properties":{"k":{"const":"b"}}}]}`,
			"#/oneOf has alternatives",
		},
		"enum and more": {
			`{"type":"string","minLength":2,"enum":["a","bb"]}`, "#/minLength cannot be enforced together with enum",
		},
		"false":         {`false`, "no finite text conforms"},
		"contradiction": {`{"type":"integer","minimum":5,"maximum":4}`, "no finite text conforms"},
		"forbidden":     {`{"type":"object","properties":{"a":false},"required":["a"]}`, "no finite text conforms"},
		"no way out": {
			`{"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]}`, "no finite text conforms",
		},
		"only itself": {`{"$ref":"#"}`, ""},
		"nested":      {strings.Repeat(`{"items":`, 70) + `{}` + strings.Repeat(`}`, 70), "nested more than 64 deep"},
		"counts":      {`{"minItems":-1,"maxLength":1.5}`, "#/minItems must be an integer from 0"},
		"all of it at once": {
			`{"minProperties":1,"maxProperties":2}`,
			"#/minProperties cannot be enforced: omit it, or state it in a description; format: #/maxProperties",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Schema([]byte(c.schema), "format")
			if c.want == "" {
				require.NoError(t, err) // without a constraint, any text conforms
				return
			}
			require.ErrorContains(t, err, c.want)
			require.ErrorContains(t, err, "format: ")
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		})
	}
}

// TestRandomSchemas checks with an independent validator that texts sampled from the grammars of
// random schemas conform to the schemas.
func TestRandomSchemas(t *testing.T) {
	n := schemas()
	var whole, rejected int
	for seed := range n {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		schema := RandomSchema(r)
		g, err := Schema([]byte(schema), "format")
		if err != nil {
			require.Regexp(t, "no finite text conforms|may both match|together with enum", err.Error(), schema)
			rejected++
			continue
		}
		if text, done := write(t, g, r, 400); done {
			conforms(t, schema, text)
			whole++
		}
	}
	t.Logf("%d of %d schemas gave whole texts; %d were rejected", whole, n, rejected)
	require.Greater(t, whole, n/2)
	require.Less(t, rejected, n/2, "most are satisfiable")
}

// RandomSchema returns a random schema that uses supported keywords only.
func RandomSchema(r *rand.Rand) string {
	m := &maker{r: r}
	root := m.schema(3)
	if len(m.definitions) > 0 {
		root["$defs"] = m.definitions
	}
	data, err := json.Marshal(root)
	if err != nil {
		panic(err)
	}
	return string(data)
}

type maker struct {
	r           *rand.Rand
	definitions map[string]any
}

func (m *maker) schema(depth int) map[string]any {
	r := m.r
	if depth <= 0 {
		return m.simple()
	}
	switch r.IntN(10) {
	case 0, 1, 2:
		s := map[string]any{"type": "object"}
		properties, required := map[string]any{}, []string{}
		for i := range r.IntN(5) {
			name := fmt.Sprintf("%c%d", "aéx\"\\"[r.IntN(5)]&0x7f|0x40, i)
			properties[name] = m.schema(depth - 1)
			if r.IntN(2) == 0 {
				required = append(required, name)
			}
		}
		s["properties"], s["required"] = properties, required
		switch r.IntN(4) {
		case 0:
			s["additionalProperties"] = false
		case 1:
			if s["additionalProperties"] = m.simple(); r.IntN(3) == 0 {
				s["propertyNames"] = map[string]any{"enum": []any{"A0", "x1", "other"}}
			}
		}
		return s
	case 3, 4:
		s := map[string]any{"type": "array", "minItems": r.IntN(2), "maxItems": 1 + r.IntN(3)}
		if r.IntN(2) == 0 {
			s["prefixItems"] = []any{m.schema(depth - 1), m.simple()}
		}
		s["items"] = m.schema(depth - 1)
		return s
	case 5:
		return map[string]any{"anyOf": []any{m.schema(depth - 1), m.schema(depth - 2), m.simple()}}
	case 6:
		return map[string]any{"oneOf": []any{m.schema(depth - 1), m.simple()}}
	case 7:
		return map[string]any{"allOf": []any{m.schema(depth - 1), m.schema(depth - 1)}}
	case 8:
		if m.definitions == nil {
			m.definitions = map[string]any{}
		}
		name := fmt.Sprintf("d%d", r.IntN(3))
		if m.definitions[name] == nil {
			m.definitions[name] = true // the definition may refer to itself
			m.definitions[name] = map[string]any{"type": "array", "items": m.schema(depth - 1), "maxItems": 2}
		}
		return map[string]any{"$ref": "#/$defs/" + name, "description": "d"}
	}
	return m.simple()
}

func (m *maker) simple() map[string]any {
	r := m.r
	switch r.IntN(9) {
	case 0:
		return map[string]any{"type": "string", "minLength": r.IntN(3), "maxLength": 3 + r.IntN(5)}
	case 1:
		low := r.IntN(2000) - 1000
		return map[string]any{"type": "integer", "minimum": low, "maximum": low + r.IntN(1500)}
	case 2:
		return map[string]any{"type": "number", "exclusiveMinimum": r.IntN(9) - 5, "maximum": 4 + r.IntN(20)}
	case 3:
		return map[string]any{"enum": []any{"a", r.IntN(9), nil, map[string]any{"k": []any{true, "é\n"}}}[:1+r.IntN(4)]}
	case 4:
		return map[string]any{"type": []string{"boolean", "null"}}
	case 5:
		names := formatNames()
		return map[string]any{"type": "string", "format": names[r.IntN(len(names))]}
	case 6:
		patterns := []string{`^[a-z]{2,4}$`, `\d{3}`, `^(yes|no|[^a-z\s]+)$`, `^"\\/?$`, `x$`}
		return map[string]any{"type": "string", "pattern": patterns[r.IntN(len(patterns))]}
	case 7:
		return map[string]any{"type": "integer", "exclusiveMinimum": r.IntN(100)}
	}
	return map[string]any{"const": []any{"x", 5, true, nil}[r.IntN(4)]}
}

// FuzzSchema checks that the compilation of each schema terminates, and that sampled texts
// conform to the schema.
func FuzzSchema(f *testing.F) {
	for seed := range 20 {
		f.Add(RandomSchema(rand.New(rand.NewPCG(uint64(seed), 5))), uint64(seed))
	}
	f.Fuzz(func(t *testing.T, schema string, seed uint64) {
		g, err := Schema([]byte(schema), "format")
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.NotEmpty(t, err.Error())
			return
		}
		if _, err := g.Start(); err != nil {
			return
		}
		if text, whole := write(t, g, rand.New(rand.NewPCG(seed, 1)), 100); whole {
			require.True(t, json.Valid([]byte(text)), "%q", text)
		}
	})
}

// FuzzGrammar checks that the compilation of each grammar terminates, and that sampled texts
// conform to the grammar.
func FuzzGrammar(f *testing.F) {
	for _, source := range []string{
		`root ::= "a"`, "root ::= [^\\x00-z]{2,}|a*\na ::= \"\\n\" (root | \"é\")+ # so\n", `root ::= ("a"?){0,9}.`,
	} {
		f.Add(source, uint64(1))
	}
	f.Fuzz(func(t *testing.T, source string, seed uint64) {
		g, err := Parse(source, "format")
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
			require.NotEmpty(t, err.Error())
			return
		}
		state, err := g.Start()
		r := rand.New(rand.NewPCG(seed, 1))
		for range 100 {
			if err != nil || state.Complete() {
				break
			}
			var mask Mask
			if mask, err = g.Allowed(state, letters); err != nil {
				break
			}
			c := r.IntN(256)
			for range 256 {
				if mask.Has(c) {
					break
				}
				c = (c + 1) % 256
			}
			require.True(t, mask.Has(c) || state.Accepts(), "a dead end in %q", source)
			if !mask.Has(c) {
				break
			}
			state, err = g.Next(state, []byte{byte(c)})
		}
		if err != nil {
			require.Equal(t, domain.InvalidArgument, domain.CodeOf(err))
		}
	})
}

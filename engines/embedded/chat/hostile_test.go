package chat

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
	"anneal/engines/embedded/tokenizer"
)

// TestHostileTemplates: a template comes from whoever uploads a model, and is
// executed where others' models answer. None takes the process with it, none
// goes on for ever, and each is answered with a fault.
func TestHostileTemplates(t *testing.T) {
	for name, source := range map[string]string{
		"loops in loops":              "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"loops that only reckon":      "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}{% endfor %}",
		"a macro that calls itself":   "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"two that call one another":   "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
		"one kept under another name": "{% set ns = namespace() %}{% macro f() %}{{ ns.f() }}{% endmacro %}{% set ns.f = f %}{{ f() }}",
		"a loop that calls itself":    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"a block that calls itself":   "{% block a %}{{ self.a() }}{% endblock %}",
		"a template that has itself":  "{% include '/template' %}",
		"a caller that calls itself":  "{% set ns = namespace() %}{% macro f() %}{% set ns.c = caller %}{{ caller() }}{% endmacro %}{% call f() %}{{ ns.c() }}{% endcall %}",
		"a text many times":           "{{ 'a' * 9999999999999 }}",
		"a text doubled":              "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
		"a text added to itself":      "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"a list added to itself":      "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"a text set to itself twice":  "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set y %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
		"a macro that doubles":        "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = f(ns.x) %}{% endfor %}",
		"a text replaced by itself":   "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
		"the filter of that name":     "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
		"a text joined by itself":     "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = ns.x | join(ns.x) %}{% endfor %}",
		"a wide text":                 "{{ 'a' | center(9999999999999) }}",
		"a wide text, the method":     "{{ 'a'.ljust(9999999999999) }}",
		"much indented":               "{{ 'a\nb' | indent(9999999999999) }}",
		"much Latin":                  "{{ lipsum(n=9999999999999) }}",
		"a set that holds itself":     "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
		"sets that hold one another":  "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}",
		"a list far down":             "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"brackets in brackets":        "{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}",
		"blocks in blocks":            strings.Repeat("{% if true %}", 8_000) + strings.Repeat("{% endif %}", 8_000),
		"a long sum":                  "{{ " + strings.Repeat("1+", 50_000) + "missing.a.b() }}",
		"a long row of nots":          "{{ " + strings.Repeat("not ", 30_000) + "1 }}",
		"a long template":             strings.Repeat("{{ 1 }}", 1_000_000),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			began := time.Now()
			one, err := parse(source, tokenizer.NewBytes(), nil)
			if err == nil {
				_, _, err = one.Prompt(&engines.Chat{Messages: turns("user", "u")}, nil)
			}
			require.Error(t, err)
			require.Contains(t, []domain.Code{domain.InvalidArgument, domain.FailedPrecondition}, domain.CodeOf(err), "%v", err)
			require.Less(t, len(err.Error()), 600)
			require.Less(t, time.Since(began), 10*renderWithin)
		})
	}
}

// TestTemplatesThatAskForMuch are within the bounds.
func TestTemplatesThatAskForMuch(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("many words ", 50_000))
	for name, c := range map[string]struct{ source, want string }{
		"a long text through many hands": {"{% macro f(m) %}{{ m.content | trim }}{% endmacro %}{% set ns = namespace(out='') %}{% for m in messages %}{% set ns.out = ns.out ~ f(m).replace('  ', ' ') %}{% endfor %}{{ ns.out.split('</think>')[-1] }}", long},
		"a macro that calls itself":      {"{% macro f(n) %}{% if n > 0 %}{{ n % 10 }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}|{{ 3 * 4 }} {{ '-' * 3 }} {{ 2 * 1.5 }} {{ '-' * -1 }}", "987654321|12 --- 3.0 "},
	} {
		t.Run(name, func(t *testing.T) {
			_, text, err := template(t, c.source).Prompt(&engines.Chat{Messages: turns("user", long)}, nil)
			require.NoError(t, err)
			require.True(t, c.want == text, "%d bytes, which end in %q", len(text), text[max(0, len(text)-80):])
		})
	}
}

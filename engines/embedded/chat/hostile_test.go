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

// TestHostileTemplates checks that templates, which users upload with their models, cannot end the
// process and cannot run longer than ten times the deadline, and that each fails with an error.
func TestHostileTemplates(t *testing.T) {
	for name, source := range map[string]string{
		"nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
		"nested loops with output": "{% for a in range(99999) %}{% for b in range(99999) %}{{ '' }}{% endfor %}" +
			"{% endfor %}",
		"a recursive macro": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
		"mutually recursive macros": "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}" +
			"{{ f() }}",
		"a macro in a namespace": "{% set ns = namespace() %}{% macro f() %}{{ ns.f() }}{% endmacro %}" +
			"{% set ns.f = f %}{{ f() }}",
		"a recursive loop":    "{% for a in [1] recursive %}{{ loop([1]) }}{% endfor %}",
		"a recursive block":   "{% block a %}{{ self.a() }}{% endblock %}",
		"a recursive include": "{% include '/template' %}",
		"a recursive caller": "{% set ns = namespace() %}{% macro f() %}{% set ns.c = caller %}{{ caller() }}" +
			"{% endmacro %}{% call f() %}{{ ns.c() }}{% endcall %}",
		"a repeated string": "{{ 'a' * 9999999999999 }}",
		"repeated concatenation with ~": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
		"repeated concatenation with +": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"repeated concatenation of lists": "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x + ns.x %}{% endfor %}",
		"a block set that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set y %}" +
			"{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = y %}{% endfor %}",
		"a macro that doubles": "{% macro f(x) %}{{ x }}{{ x }}{% endmacro %}" +
			"{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}{% set ns.x = f(ns.x) %}{% endfor %}",
		"the method replace that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x.replace('a', ns.x) %}{% endfor %}",
		"the filter replace that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x | replace('a', ns.x) %}{% endfor %}",
		"the filter join that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = ns.x | join(ns.x) %}{% endfor %}",
		"the filter center":        "{{ 'a' | center(9999999999999) }}",
		"the method ljust":         "{{ 'a'.ljust(9999999999999) }}",
		"the filter indent":        "{{ 'a\nb' | indent(9999999999999) }}",
		"the function lipsum":      "{{ lipsum(n=9999999999999) }}",
		"a namespace in itself":    "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}",
		"namespaces in each other": "{% set a = namespace() %}{% set b = namespace(a=a) %}{% set a.b = b %}{{ a }}",
		"a deeply nested list": "{% set ns = namespace(x=[]) %}{% for i in range(99999) %}" +
			"{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}",
		"nested brackets":   "{{ " + strings.Repeat("(", 100_000) + "1" + strings.Repeat(")", 100_000) + " }}",
		"nested blocks":     strings.Repeat("{% if true %}", 8_000) + strings.Repeat("{% endif %}", 8_000),
		"a long sum":        "{{ " + strings.Repeat("1+", 50_000) + "missing.a.b() }}",
		"repeated negation": "{{ " + strings.Repeat("not ", 30_000) + "1 }}",
		"a with that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% with y = ns.x ~ ns.x %}{% set ns.x = y %}{% endwith %}{% endfor %}",
		"a set condition that doubles": "{% set ns = namespace(x='aaaaaaaa') %}{% for i in range(99) %}" +
			"{% set ns.x = 1 if ns.x * 9999999 else 2 %}{% endfor %}",
		"a set alternative that repeats": "{% set x = 1 if false else 'a' * 9999999999999 %}",
		"a set target that repeats":      "{% set ns = namespace() %}{% set ns['a' * 9999999999999] = 1 %}",
		"a with that loops": "{% with x = 1 %}{% for a in range(99999) %}{% for b in range(99999) %}" +
			"{% endfor %}{% endfor %}{% endwith %}",
		"a macro default that repeats": "{% macro f(x='a' * 9999999999999) %}{{ x }}{% endmacro %}{{ f() }}",
		"a do that repeats":            "{% do 'a' * 9999999999999 %}",
		"an if that repeats":           "{% if 'a' * 9999999999999 %}{% endif %}",
		"a test that repeats":          "{{ 1 is divisibleby('a' * 9999999999999) }}",
		"a slice that repeats":         "{{ 'abc'[:('a' * 9999999999999) | length] }}",
		"a long template":              strings.Repeat("{{ 1 }}", 1_000_000),
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

// TestTemplatesWithinTheLimits checks that templates render large inputs that are within the
// limits.
func TestTemplatesWithinTheLimits(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("many words ", 50_000))
	for name, c := range map[string]struct{ source, want string }{
		"many copies of a long text": {
			"{% macro f(m) %}{{ m.content | trim }}{% endmacro %}{% set ns = namespace(out='') %}{% for m in messages %}" +
				"{% set ns.out = ns.out ~ f(m).replace('  ', ' ') %}{% endfor %}{{ ns.out.split('</think>')[-1] }}",
			long,
		},
		"a recursive macro": {
			"{% macro f(n) %}{% if n > 0 %}{{ n % 10 }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(9) }}|{{ 3 * 4 }}" +
				" {{ '-' * 3 }} {{ 2 * 1.5 }} {{ '-' * -1 }}",
			"987654321|12 --- 3.0 ",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, text, err := template(t, c.source).Prompt(&engines.Chat{Messages: turns("user", long)}, nil)
			require.NoError(t, err)
			require.True(t, c.want == text, "%d bytes, which end in %q", len(text), text[max(0, len(text)-80):])
		})
	}
}

package domain_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

// The cases follow the test suite of W3C Trace Context.
func TestParseTrace(t *testing.T) {
	const id = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
	const parent = "00-" + id + "-01"
	for given, want := range map[string]string{
		parent:                                  parent,
		"\t" + parent + " ":                     parent,
		"00-" + id + "-00":                      "00-" + id + "-00",
		"00-" + id + "-ff":                      "00-" + id + "-ff",
		"cc-" + id + "-01":                      parent,
		"cc-" + id + "-0f-what":                 parent,
		"cc-" + id + "-02-":                     "00-" + id + "-00",
		"":                                      "",
		"00":                                    "",
		"00-" + id + "-01-":                     "",
		"00-" + id + "-01-x":                    "",
		"cc-" + id + "-01.x":                    "",
		"ff-" + id + "-01":                      "",
		"0-" + id + "-01":                       "",
		"00-" + id + "-1":                       "",
		"00-" + id + "-0X":                      "",
		"00-" + id + "-.1":                      "",
		strings.ToUpper(parent):                 "",
		"00." + id + ".01":                      "",
		"00_" + id[:32] + "_" + id[33:] + "_01": "",
		"00-" + strings.Repeat("0", 32) + "-00f067aa0ba902b7-01":  "",
		"00-" + id[:32] + "-" + strings.Repeat("0", 16) + "-01":   "",
		"00-" + id[:31] + "-00f067aa0ba902b7-01":                  "",
		"00-" + id[:32] + "-00f067aa0ba902b-01":                   "",
		"00-" + id[:31] + "\n-00f067aa0ba902b7-01":                "",
		"00-" + id[:32] + "-00f067aa0ba902b7-01\r\nInjected: yes": "",
	} {
		require.Equal(t, domain.Trace{Parent: want}, domain.ParseTrace([]string{given}, nil), "%q", given)
	}
	require.Zero(t, domain.ParseTrace([]string{parent, parent}, nil), "two headers")
	require.Zero(t, domain.ParseTrace(nil, []string{"a=1"}), "a tracestate without a traceparent")

	many := func(n int, form string) string {
		var all []string
		for i := range n {
			all = append(all, fmt.Sprintf(form, i))
		}
		return strings.Join(all, ",")
	}
	long := many(20, "k%02d="+strings.Repeat("v", 46)) // members of 50 bytes
	for given, want := range map[string]string{
		"foo=1":                         "foo=1",
		"foo=1,bar=2":                   "foo=1,bar=2",
		"foo=1 \t , \t bar=2, ,":        "foo=1,bar=2",
		"fw529a3039@dt=FfQ,a/b*_-=":     "",
		"t0-_*/@v=x y":                  "t0-_*/@v=x y",
		"foo=1,foo=2":                   "",
		"Foo=1":                         "",
		"foo =1":                        "",
		"a@b@c=1":                       "",
		"foo=1=2":                       "",
		"foo=\x01":                      "",
		"foo=é":                         "",
		"=1":                            "",
		"foo":                           "",
		"":                              "",
		many(32, "k%d=1"):               many(32, "k%d=1"),
		many(33, "k%d=1"):               "",
		long:                            long[:10*51-1],
		strings.Repeat("k", 257) + "=1": "",
	} {
		require.Equal(t, domain.Trace{Parent: parent, State: want},
			domain.ParseTrace([]string{parent}, []string{given}), "%q", given)
	}
	require.Equal(t, "a=1,b=2", domain.ParseTrace([]string{parent}, []string{"a=1", "b=2"}).State, "two headers")
}

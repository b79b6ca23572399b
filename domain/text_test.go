package domain

import (
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"
)

func TestControlCharacters(t *testing.T) {
	for _, text := range []string{"", "plain", "Grüße, 世界 🙂", "👩\u200d💻", "می\u200cخواهم", "right\u200e",
		"soft\u00adhyphen"} {
		_, _, found := ControlCharacter(text, false)
		require.False(t, found, "%q", text)
		require.Equal(t, text, Printable(text))
	}
	refused := []rune{0x202A, 0x202E, 0x2066, 0x2069, 0x2028, 0x2029, 0x200B, 0x2060, 0xFEFF}
	for r := range rune(0x100) {
		if unicode.Is(unicode.Cc, r) {
			refused = append(refused, r)
		}
	}
	require.Len(t, refused, 9+65)
	for _, r := range refused {
		text := "é" + string(r) + "z"
		found, at, is := ControlCharacter(text, false)
		require.True(t, is, "U+%04X", r)
		require.Equal(t, r, found)
		require.Equal(t, 2, at)
		_, _, is = ControlCharacter(text, true)
		require.Equal(t, r != '\t' && r != '\n', is, "U+%04X", r)
		if is {
			require.NotContains(t, Printable(text), string(r))
			require.True(t, strings.HasPrefix(Printable(text), `é\u`), Printable(text))
		}
		var v Violations
		v.RequireText("displayName", text, false)
		require.Len(t, v, 1)
		require.NotContains(t, v[0].Description, string(r))
	}
}

// TestNodesReportNoControlCharacters checks that a node spec with control characters is refused.
func TestNodesReportNoControlCharacters(t *testing.T) {
	spec := NodeSpec{Capacity: Resources{CPUMilli: 1000, Accelerators: map[string]int{"GPU\u001b[2J": 1}},
		Engines: []string{"train\u009b"}, Version: "1\u202e"}
	_, err := RegisterNode{NodeSpec: spec}.Decide(Node{}, time.Time{})
	var fault *Error
	require.ErrorAs(t, err, &fault)
	require.Len(t, fault.Violations, 3)
	require.Equal(t, Printable(fault.Message), fault.Message)
}

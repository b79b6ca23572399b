package wire

import (
	"strings"
)

// Specified returns the value of an enumeration as the domain stores it: "" for a value that ends
// in _UNSPECIFIED, otherwise the value itself.
func Specified(enum string) string {
	if strings.HasSuffix(enum, "_UNSPECIFIED") {
		return ""
	}
	return enum
}

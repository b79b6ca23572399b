package wire

import (
	"strings"
)

// Specified returns an enumeration's value as the domain keeps it: "" for one that ends in
// _UNSPECIFIED.
func Specified(enum string) string {
	if strings.HasSuffix(enum, "_UNSPECIFIED") {
		return ""
	}
	return enum
}

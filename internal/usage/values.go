package usage

import (
	"fmt"
	"strings"

	"github.com/spf13/pflag"
)

// valuesOfTypes describes the valid values of flags, by type.
var valuesOfTypes = map[string]string{"int": "a whole number", "int32": "a whole number", "int64": "a whole number",
	"uint": "a whole number from 0 on", "uint64": "a whole number from 0 on", "float64": "a number, such as 0.5",
	"bool": "true or false", "duration": "a duration, such as 30s, 10m or 720h",
	"stringToString": "NAME=VALUE"}

// WhyInvalid describes why the value of a flag is invalid, and which values are valid.
func WhyInvalid(invalid *pflag.InvalidValueError) string {
	value, cause := invalid.GetValue(), invalid.Unwrap()
	takes := valuesOfTypes[invalid.GetFlag().Value.Type()]
	switch {
	case takes == "":
		return fmt.Sprintf("%v", cause)
	case strings.Contains(cause.Error(), "out of range"):
		return fmt.Sprintf("%q is out of range: the flag takes %s", value, takes)
	}
	return fmt.Sprintf("%q must be %s", value, takes)
}

package grammar

import (
	"maps"
	"slices"
)

// dayPattern allows February 29 only in leap years.
const (
	dayPattern = `(?:[0-9]{4}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])` +
		`|(?:0[13-9]|1[0-2])-(?:29|30)|(?:0[13578]|1[02])-31)` +
		`|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)`
	clockPattern = `(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])`
	bytePattern  = `(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])`
	labelPattern = `[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?`
	hostPattern  = labelPattern + `(?:\.` + labelPattern + `){0,3}`
)

// formats are the patterns of the string formats that are enforced. A pattern covers only the
// common variants of its format.
var formats = map[string]string{
	"date":      `^` + dayPattern + `$`,
	"time":      `^` + clockPattern + `$`,
	"date-time": `^` + dayPattern + `T` + clockPattern + `$`,
	"duration": `^P(?:[0-9]{1,9}W|(?:[0-9]{1,9}D|[0-9]{1,9}M(?:[0-9]{1,9}D)?|[0-9]{1,` +
		`9}Y(?:[0-9]{1,9}M(?:[0-9]{1,9}D)?)?)(?:T[0-9]{1,9}[HMS])?|T[0-9]{1,9}[HMS])$`,
	"email": `^[A-Za-z0-9_+-]{1,32}(?:\.[A-Za-z0-9_+-]{1,20}){0,1}@` + labelPattern +
		`(?:\.` + labelPattern + `){0,2}\.[A-Za-z]{2,16}$`,
	"hostname": `^` + hostPattern + `$`,
	"ipv4":     `^` + bytePattern + `(?:\.` + bytePattern + `){3}$`,
	"ipv6":     `^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$`,
	"uri": `^(?:https?|ftp)://` + hostPattern + `(?::[1-9][0-9]{0,3})?` +
		`(?:/[A-Za-z0-9._~-]{0,40}){0,16}(?:\?[A-Za-z0-9._~=&-]{0,256})?(?:#[A-Za-z0-9._~-]{0,64})?$`,
	"uuid": `^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[1-8][0-9a-fA-F]{3}-[89abAB][0-9a-fA-F]{3}-[0-9a-fA-F]{12}$`,
}

// restated are patterns that zod, a schema library, adds to formats of JSON Schema. The grammar ignores
// them: they are not supported or need too many states, and all strings that match a pattern of the
// variable formats also match them.
var restated = map[string]string{
	"duration": `^P(?:(\d+W)|(?!.*W)(?=\d|T\d)(\d+Y)?(\d+M)?(\d+D)?(T(?=\d)(\d+H)?(\d+M)?(\d+([.,]\d+)?S)?)?)$`,
	"hostname": `^(?=.{1,253}\.?$)[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?(?:\.[a-zA-Z0-9](?:[-0-9a-zA-Z]{0,` +
		`61}[0-9a-zA-Z])?)*\.?$`,
}

func formatNames() []string { return slices.Sorted(maps.Keys(formats)) }

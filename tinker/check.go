package tinker

import (
	"bytes"
	"encoding/json"
	"math"
	"regexp"
	"strconv"
	"unicode/utf8"

	"anneal/domain"
)

// index returns the path of an element of a list.
func index(path string, i int) string { return path + "[" + strconv.Itoa(i) + "]" }

// quote quotes a text of a request for an error message: at most its first MaxDisplayedText bytes.
func quote(text string) string {
	if len(text) > MaxDisplayedText {
		text = text[:MaxDisplayedText]
		for !utf8.ValidString(text) && text != "" {
			text = text[:len(text)-1]
		}
		return strconv.QuoteToASCII(text) + "…"
	}
	return strconv.QuoteToASCII(text)
}

// short truncates a text of a request for the search for similar names.
func short(text string) string { return text[:min(len(text), MaxDisplayedText)] }

// checkText requires a text of at most limit bytes without control characters.
func checkText(v *domain.Violations, field, text string, limit int, required bool) {
	v.Require(text != "" || !required, field, "is required")
	v.Require(len(text) <= limit, field, "must have at most %d bytes, has %d", limit, len(text))
	for _, r := range text {
		if r < ' ' || r == 0x7f || r == utf8.RuneError {
			v.Add(field, "must be UTF-8 without control characters, is %s", quote(text))
			return
		}
	}
}

func checkModel(v *domain.Violations, id string) { checkText(v, "model_id", id, MaxNameBytes, true) }

// checkSeq requires a sequence number of at least first. Clients store them in 32 bits.
func checkSeq(v *domain.Violations, field string, seq *int64, first int64) {
	switch {
	case seq == nil:
		v.Add(field, "is required: number the requests in their order, from %d", first)
	case *seq < first || *seq > math.MaxInt32:
		v.Add(field, "must be %d to %d, is %d", first, math.MaxInt32, *seq)
	}
}

func checkMetadata(v *domain.Violations, raw json.RawMessage) {
	raw = bytes.TrimSpace(raw)
	v.Require(len(raw) <= MaxMetadata, "user_metadata", "must have at most %d bytes as JSON, has %d", MaxMetadata,
		len(raw))
	v.Require(isNull(raw) || raw[0] == '{', "user_metadata", "must be an object, is %s", jsonKind(raw))
}

var checkpointName = regexp.MustCompile(`^[A-Za-z0-9_-][A-Za-z0-9._-]*$`)

// checkName requires the name of a checkpoint.
func checkName(v *domain.Violations, field, name string) {
	v.Require(len(name) <= MaxNameBytes && checkpointName.MatchString(name), field, "must have 1 to %d of the characters "+
		"A-Z, a-z, 0-9, '_', '-' and '.', and not begin with '.'; is %s", MaxNameBytes, quote(name))
}

func checkTTL(v *domain.Violations, seconds *int64) {
	v.Require(seconds == nil || *seconds >= 1 && *seconds <= MaxTTLSeconds, "ttl_seconds",
		"must be 1 to %d, is %d; leave it out for a checkpoint that does not expire", MaxTTLSeconds, valueOf(seconds, 0))
}

func valueOf[T any](p *T, missing T) T {
	if p == nil {
		return missing
	}
	return *p
}

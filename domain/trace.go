package domain

import (
	"strconv"
	"strings"
)

// A Trace is the trace context of a request (W3C Trace Context): its header traceparent and, if the
// client sent any, its header tracestate. The zero value stands for a request without trace
// context.
type Trace struct {
	Parent string `json:"traceparent,omitempty"`
	State  string `json:"tracestate,omitempty"`
}

const (
	traceParentLength = 55  // length of a traceparent: 00-TRACE_ID-PARENT_ID-FLAGS
	maxTraceState     = 512 // maximum bytes of a tracestate that are passed on
	maxTraceMembers   = 32
)

// ParseTrace returns the trace of a request from the values of its headers traceparent and
// tracestate. As W3C Trace Context requires, it returns no trace for an invalid traceparent, omits an
// invalid tracestate, and changes a traceparent of a newer version to version 00.
func ParseTrace(parents, states []string) Trace {
	if len(parents) != 1 {
		return Trace{}
	}
	parent := strings.Trim(parents[0], " \t")
	switch {
	case len(parent) < traceParentLength || parent[2] != '-' || parent[35] != '-' || parent[52] != '-':
		return Trace{}
	case !isHex(parent[:2]) || !isID(parent[3:35]) || !isID(parent[36:52]) || !isHex(parent[53:55]) ||
		parent[:2] == "ff":
		return Trace{}
	case parent[:2] == "00" && len(parent) > traceParentLength:
		return Trace{}
	case len(parent) > traceParentLength && parent[traceParentLength] != '-':
		return Trace{}
	case parent[:2] != "00": // a newer version may have further flags: keep only sampled
		sampled := strings.IndexByte("0123456789abcdef", parent[54]) & 1
		parent = "00" + parent[2:53] + "0" + strconv.Itoa(sampled)
	}
	return Trace{parent, parseTraceState(strings.Join(states, ","))}
}

func isHex(text string) bool {
	for i := range len(text) {
		if c := text[i]; (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	return true
}

// isID reports whether text is hexadecimal and not zero, as trace IDs and parent IDs must be.
func isID(text string) bool { return isHex(text) && strings.Trim(text, "0") != "" }

// parseTraceState returns the members of a tracestate in their order; "" for an invalid tracestate.
// Members at the end are left out when the result exceeds maxTraceState.
func parseTraceState(text string) string {
	var members []string
	seen, size := map[string]bool{}, -1
	for member := range strings.SplitSeq(text, ",") {
		member = strings.Trim(member, " \t")
		if member == "" {
			continue
		}
		key, value, _ := strings.Cut(member, "=")
		if !isTraceKey(key) || !isTraceValue(value) || seen[key] || len(seen) == maxTraceMembers {
			return ""
		}
		seen[key] = true
		if size += 1 + len(member); size <= maxTraceState {
			members = append(members, member)
		}
	}
	return strings.Join(members, ",")
}

func isTraceKey(key string) bool {
	for i := range len(key) {
		c := key[i]
		letter := c >= 'a' && c <= 'z' || c >= '0' && c <= '9'
		if !letter && (i == 0 || !strings.ContainsRune("_-*/@", rune(c))) {
			return false
		}
	}
	return key != "" && len(key) <= 256 && strings.Count(key, "@") <= 1
}

func isTraceValue(value string) bool {
	for i := range len(value) {
		if c := value[i]; c < 0x20 || c > 0x7e || c == ',' || c == '=' {
			return false
		}
	}
	return value != "" && len(value) <= 256
}

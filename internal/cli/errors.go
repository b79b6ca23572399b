package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"anneal/domain"
	"anneal/domain/rows"
	"anneal/domain/weights"
)

// An apiError is an error response of the API.
type apiError struct {
	Status     int // HTTP status code
	Reason     string
	Message    string
	Violations []violation

	request string // URL path of the request
}

// A violation is an invalid field of a request, with the reason.
type violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// maxViolations is the maximum number of violations of a request that are printed.
const maxViolations = 20

// minTruncated is the smallest number of listed violations at which the server may have truncated
// the list.
const minTruncated = min(rows.MaxErrors, weights.MaxViolations, domain.MaxViolations)

// fieldPath matches the dotted path of a field. It is compared with the beginning of a server's
// message.
var fieldPath = regexp.MustCompile(`^[a-z][a-zA-Z0-9_.\[\]]*$`)

func (e *apiError) Error() string { return e.text(func(field string) string { return field }) }

// text returns the message of the server. It replaces the name of each invalid field by the result
// of name.
func (e *apiError) text(name func(field string) string) string {
	if n := len(e.Violations); n > 1 {
		return fmt.Sprintf("%s fields or rows are invalid:", numberOf(n, n)) + listViolations(e.Violations, name)
	}
	for _, v := range e.Violations {
		if rest, found := strings.CutPrefix(e.Message, v.Field+": "); found {
			return name(v.Field) + ": " + rest
		}
	}
	field, rest, found := strings.Cut(e.Message, ": ")
	if found && len(e.Violations) == 0 && fieldPath.MatchString(field) {
		return name(field) + ": " + rest
	}
	return e.Message
}

// numberOf returns a number of violations as text, such as "at least 100". listed is the length of
// the server's list, which may be truncated.
func numberOf(n, listed int) string {
	if listed >= minTruncated {
		return fmt.Sprintf("at least %d", n)
	}
	return strconv.Itoa(n)
}

// listViolations returns violations as text, one per line. Lines of a file that violate the same
// rule share a line of the text.
func listViolations(violations []violation, name func(field string) string) string {
	var text strings.Builder
	groups, shown := rows.Groups(lineErrors(violations, name)), 0
	for _, g := range groups[:min(len(groups), maxViolations)] {
		fmt.Fprintf(&text, "\n  %s", g)
		shown += max(1, len(g.Lines))
	}
	if more := len(violations) - shown; more > 0 {
		fmt.Fprintf(&text, "\n  and %s more", numberOf(more, len(violations)))
	}
	return text.String()
}

// lineErrors returns violations as errors of lines of files. The field of such a violation is
// FILE:LINE.
func lineErrors(violations []violation, name func(field string) string) (errs []rows.LineError) {
	for _, v := range violations {
		at := strings.LastIndexByte(v.Field, ':')
		line, err := strconv.Atoi(v.Field[at+1:])
		if at > 0 && err == nil && line > 0 {
			errs = append(errs, rows.LineError{File: v.Field[:at], Line: line, Reason: v.Description})
		} else {
			errs = append(errs, rows.LineError{File: name(v.Field), Reason: v.Description})
		}
	}
	return errs
}

// readError reads the error in the body of a response.
func readError(res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	// Errors of the management API have message and details; those of the inference API have error.
	var body struct {
		Message string `json:"message"`
		Details []struct {
			Reason     string      `json:"reason"`
			Violations []violation `json:"fieldViolations"`
		} `json:"details"`
		Error struct {
			Message string `json:"message"`
			Param   string `json:"param"`
			Code    string `json:"code"`
		} `json:"error"`
	}
	_ = json.Unmarshal(text, &body) // if the body is not JSON, the message stays empty
	e := &apiError{Status: res.StatusCode, Reason: body.Error.Code, Message: body.Message + body.Error.Message,
		request: res.Request.URL.Path}
	for _, d := range body.Details {
		e.Reason += d.Reason
		e.Violations = append(e.Violations, d.Violations...)
	}
	if param := body.Error.Param; param != "" {
		e.Violations = []violation{{Field: param, Description: strings.TrimPrefix(e.Message, param+": ")}}
	}
	if e.Message == "" && strings.Contains(string(text), "HTTP request to an HTTPS server") {
		e.Message = fmt.Sprintf("the server at %s speaks TLS: give its address as https://%s", res.Request.URL.Host,
			res.Request.URL.Host)
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("%s responded with %s, so it is no anneal server: select another server with --context",
			res.Request.URL.Host, res.Status)
	}
	return e
}

// errTruncated returns the error of a response that ended before its end.
func errTruncated(err error) error {
	return fmt.Errorf("the response was truncated: %w; try again", err)
}

// withoutURL returns the cause of a failed request without the request's URL, which may be long and
// contain a signature.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// apiAdvice matches the end of a server's message that advises to send an API request.
var apiAdvice = regexp.MustCompile(`[:;] (?:[^:;\n]*\b(?:GET|POST|PATCH) /?[A-Za-z]|set ignoreChecks)[^;\n]*`)

// describe returns the text of an error for the user of a command. In an error of the API, it
// replaces the invalid fields by the flags and arguments that set them, and advice to send API
// requests by hints about commands.
//
// The text of an error with a file begins with the flag or argument that names the file.
func describe(c *cobra.Command, err error) string {
	var e *apiError
	if !errors.As(err, &e) {
		return describeFile(c, err) + hintOf(err)
	}
	text := strings.Replace(err.Error(), e.Error(), e.text(func(field string) string { return nameOf(c, field) }), 1)
	hints := hintsFor(c, e)
	if len(hints) > 0 {
		text = apiAdvice.ReplaceAllString(text, "")
	}
	for _, hint := range hints {
		text += "\nhint: " + hint
	}
	return text + hintOf(err)
}

// A hintedError is an error with a hint that tells the user what to do.
type hintedError struct {
	error
	hint string
}

func (e hintedError) Unwrap() error { return e.error }

// withHint adds a hint to an error. If err is nil or the hint is "", it returns err.
func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return hintedError{err, hint}
}

// hintOf returns the hint of an error as a line of text, which begins with a newline; "" if it has
// none.
func hintOf(err error) string {
	var hinted hintedError
	if !errors.As(err, &hinted) {
		return ""
	}
	return "\nhint: " + hinted.hint
}

// describeFile returns the text of an error. The text of an error about a file begins with the name
// of the file instead of the failed system call. If the command line names the file, the flag or
// argument with the name comes first.
func describeFile(c *cobra.Command, err error) string {
	var at *fs.PathError
	if !errors.As(err, &at) {
		return err.Error()
	}
	where := at.Path
	if source := sourceOf(c, at.Path); source != "" {
		where = source + " " + at.Path
	}
	return strings.Replace(err.Error(), at.Error(), where+": "+at.Err.Error(), 1)
}

// sourceOf returns the name of the flag or argument of a command line whose value is value; "" if
// there is none.
func sourceOf(c *cobra.Command, value string) (source string) {
	names := strings.Fields(c.Use)
	for i, arg := range c.Flags().Args() {
		if arg == value && i+1 < len(names) {
			source, _, _ = strings.Cut(strings.Trim(names[i+1], "[]"), "|")
		}
	}
	c.Flags().Visit(func(f *pflag.Flag) {
		if f.Value.String() == value {
			source = "--" + f.Name
		}
	})
	return source
}

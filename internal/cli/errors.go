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

// apiError is an error response of the API.
type apiError struct {
	Status     int // HTTP status
	Reason     string
	Message    string
	Violations []violation

	request string // path of the request
}

// violation is a field of a request that is wrong.
type violation struct {
	Field       string `json:"field"`
	Description string `json:"description"`
}

// maxViolations is how many violations of one request are printed.
const maxViolations = 20

// minTruncated is the smallest number of violations at which a server may have truncated the list
// of violations.
const minTruncated = min(rows.MaxErrors, weights.MaxViolations, domain.MaxViolations)

// fieldPath matches the path of a field at the beginning of a message.
var fieldPath = regexp.MustCompile(`^[a-z][a-zA-Z0-9_.\[\]]*$`)

func (e *apiError) Error() string { return e.text(func(field string) string { return field }) }

// text returns the message of the server, in which name replaces the names of violated fields.
func (e *apiError) text(name func(field string) string) string {
	if n := len(e.Violations); n > 1 {
		return fmt.Sprintf("%s things are wrong:", numberOf(n, n)) + listViolations(e.Violations, name)
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

// numberOf returns a number of violations as text. listed is the length of their list, which the
// server may have truncated.
func numberOf(n, listed int) string {
	if listed >= minTruncated {
		return fmt.Sprintf("at least %d", n)
	}
	return strconv.Itoa(n)
}

// listViolations returns violations with one line each; those of several lines of a file that have one
// reason share a line.
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

// lineErrors returns violations as errors of lines: the field of a line is FILE:LINE.
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

// readError reads the error that a response contains.
func readError(res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var body struct { // body of the management API; the inference API has the field error
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
	_ = json.Unmarshal(text, &body) // a body that is not JSON leaves the message empty
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
		e.Message = fmt.Sprintf("%s responded %s, unlike an anneal server: select another server with --context",
			res.Request.URL.Host, res.Status)
	}
	return e
}

// errTruncated is the error of a response that ends too early.
func errTruncated(err error) error {
	return fmt.Errorf("the response was truncated: %w; try again", err)
}

// withoutURL returns the cause of a failed request without its URL, which may be long and contain a
// signature.
func withoutURL(err error) error {
	var of *url.Error
	if errors.As(err, &of) {
		return of.Err
	}
	return err
}

// apiAdvice matches the end of a message that advises a request of the API.
var apiAdvice = regexp.MustCompile(`[:;] (?:[^:;\n]*\b(?:GET|POST|PATCH) /?[A-Za-z]|set ignoreChecks)[^;\n]*`)

// describe returns the text of an error for the user of a command. For an error of the API, it
// names the flags and arguments that set the violated fields, and replaces advice to send API
// requests with hints about commands.
//
// An error of a file begins with the flag or the argument that names the file.
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

// hintedError is an error with a hint about what the user can do.
type hintedError struct {
	error
	hint string
}

func (e hintedError) Unwrap() error { return e.error }

// withHint adds a hint to an error, unless the hint is "".
func withHint(err error, hint string) error {
	if err == nil || hint == "" {
		return err
	}
	return hintedError{err, hint}
}

// hintOf returns the line with the hint of an error; "" if it has none.
func hintOf(err error) string {
	var hinted hintedError
	if !errors.As(err, &hinted) {
		return ""
	}
	return "\nhint: " + hinted.hint
}

// describeFile returns the text of an error. The error of a file that the command line names begins
// with the flag or argument that names it, instead of with the failed system call.
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

// sourceOf returns the flag or the argument of a command line that is set to value; "" if there is
// none.
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

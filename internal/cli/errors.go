package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"

	"github.com/spf13/cobra"
)

// apiError is an error response of the API.
type apiError struct {
	Status     int // of HTTP
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

func (e *apiError) Error() string { return e.text(func(field string) string { return field }) }

// text returns the message of the server, in which name replaces the names of violated fields.
func (e *apiError) text(name func(field string) string) string {
	if len(e.Violations) > 1 {
		return fmt.Sprintf("%d things are wrong:", len(e.Violations)) + listViolations(e.Violations, name)
	}
	for _, v := range e.Violations {
		if rest, found := strings.CutPrefix(e.Message, v.Field+": "); found {
			return name(v.Field) + ": " + rest
		}
	}
	return e.Message
}

// listViolations returns violations with one line each.
func listViolations(violations []violation, name func(field string) string) string {
	var text strings.Builder
	for _, v := range violations[:min(len(violations), maxViolations)] {
		fmt.Fprintf(&text, "\n  %s: %s", name(v.Field), v.Description)
	}
	if more := len(violations) - maxViolations; more > 0 {
		fmt.Fprintf(&text, "\n  and %d more", more)
	}
	return text.String()
}

// readError reads the error that a response contains.
func readError(res *http.Response) error {
	text, _ := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	var body struct { // of the management API, and in Error of the inference API
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
	_ = json.Unmarshal(text, &body) // what is no error of the API has no message
	e := &apiError{Status: res.StatusCode, Reason: body.Error.Code, Message: body.Message + body.Error.Message, request: res.Request.URL.Path}
	for _, d := range body.Details {
		e.Reason += d.Reason
		e.Violations = append(e.Violations, d.Violations...)
	}
	if param := body.Error.Param; param != "" {
		e.Violations = []violation{{Field: param, Description: strings.TrimPrefix(e.Message, param+": ")}}
	}
	if e.Message == "" {
		e.Message = fmt.Sprintf("%s responded %s, unlike an anneal server: select another with --context", res.Request.URL.Host, res.Status)
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

// describe returns an error as the user of a command reads it: an error of the API names the flags
// and arguments that set the violated fields, and is followed by hints.
func describe(c *cobra.Command, err error) string {
	var e *apiError
	if !errors.As(err, &e) {
		return err.Error()
	}
	text := strings.Replace(err.Error(), e.Error(), e.text(func(field string) string { return nameOf(c, field) }), 1)
	for _, hint := range hintsFor(c, e) {
		text += "\nhint: " + hint
	}
	return text
}

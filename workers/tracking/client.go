package tracking

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"anneal/blobs/outbound"
	"anneal/domain"
)

const (
	maxResponse = 4 << 20 // maximum length in bytes of a response that is read
	maxMessage  = 300     // maximum bytes of a tracker's message in an error
)

// A rejection is the error for a request that the tracker refuses, and would refuse again.
type rejection struct{ message string }

func (r rejection) Error() string { return r.message }

// A busyError is the error for a request that the tracker cannot serve now, for example because of
// its rate limit.
type busyError struct {
	message string
	after   time.Duration // pause before the next attempt, from the response header Retry-After; 0 without the header
}

func (b busyError) Error() string { return b.message }

// A client sends requests to the tracker at the URL base.
type client struct {
	base string
	http *http.Client
}

// A request is one HTTP request to a tracker.
type request struct {
	method, path  string
	body          any // value that is sent as JSON; nil for a request without a body
	authorization string
	key           domain.SecretValue
	// expected is an error code of the tracker for which do returns errExpected instead of a
	// rejection; "" for none.
	expected string
}

// errExpected is returned for a response with the error code request.expected.
var errExpected = errors.New("the tracker responded with the expected error code")

// do sends a request and decodes the JSON response into out; out may be nil. Errors contain neither
// the API key nor the request.
func (c client) do(ctx context.Context, q request, out any) error {
	var body io.Reader
	if q.body != nil {
		data, err := json.Marshal(q.body)
		if err != nil {
			return fmt.Errorf("encode a request to the tracker: %w", err)
		}
		body = bytes.NewReader(data)
	}
	r, err := http.NewRequestWithContext(ctx, q.method, c.base+q.path, body)
	if err != nil {
		return rejection{"the address of the tracker is not a valid URL"}
	}
	if body != nil {
		r.Header.Set("Content-Type", "application/json")
	}
	if q.authorization != "" {
		r.Header.Set("Authorization", q.authorization)
	}
	r.Header.Set("User-Agent", "anneal")
	response, err := c.http.Do(r)
	switch {
	case errors.Is(err, outbound.ErrPrivate):
		return rejection{"the host of the tracker has a private address: only the operator can name such a tracker " +
			"(--tracker)"}
	case err != nil:
		return fmt.Errorf("the tracker does not respond: %w", outbound.Cause(err))
	}
	defer response.Body.Close()
	data, err := io.ReadAll(io.LimitReader(response.Body, maxResponse+1))
	switch {
	case err != nil:
		return fmt.Errorf("the response of the tracker ended early: %w", outbound.Cause(err))
	case response.StatusCode != http.StatusOK:
		return c.failure(q, response, data)
	case len(data) > maxResponse:
		return rejection{fmt.Sprintf("the response of the tracker has more than %d bytes", maxResponse)}
	case out == nil:
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return rejection{"the response does not follow the protocol of the tracker: check the address of the tracker"}
	}
	return nil
}

// failure returns the error for a response with a status other than 200.
func (c client) failure(q request, response *http.Response, data []byte) error {
	status := response.StatusCode
	var said struct {
		Code    string         `json:"error_code"` // error code in responses of MLflow; "" in those of other trackers
		Message string         `json:"message"`
		Errors  []graphQLError `json:"errors"`
	}
	_ = json.Unmarshal(data, &said) // a proxy may respond in another format
	if q.expected != "" && said.Code == q.expected {
		return errExpected
	}
	if said.Message == "" && len(said.Errors) > 0 {
		said.Message = said.Errors[0].Message
	}
	message := "status " + strconv.Itoa(status)
	if said.Message != "" {
		message += ", " + shown(said.Message, q.key)
	}
	switch {
	case status == http.StatusTooManyRequests, status == http.StatusRequestTimeout,
		status >= http.StatusInternalServerError:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 when the header is missing or has a date
		return busyError{"the tracker responds with " + message, time.Duration(max(seconds, 0)) * time.Second}
	case status == http.StatusUnauthorized:
		return rejection{"the tracker rejects trackerConfig.apiKey (" + message + ")"}
	case status == http.StatusForbidden:
		return rejection{"trackerConfig.apiKey may not write to the project (" + message + ")"}
	}
	return rejection{"the tracker rejects the run (" + message + ")"}
}

// A graphQLError is an error in the response of a GraphQL server.
type graphQLError struct {
	Message string `json:"message"`
}

// shown returns a tracker's text for an error message: on one line and cut to maxMessage bytes. The
// API key, and the password in a key USER:PASSWORD, are replaced by [redacted], in every encoding
// that requests use.
func shown(text string, key domain.SecretValue) string {
	_, password, _ := strings.Cut(key.Reveal(), ":")
	for _, k := range []string{key.Reveal(), password} {
		if k == "" {
			continue
		}
		for _, form := range []string{basic(k), base64.StdEncoding.EncodeToString([]byte(k)), url.QueryEscape(k),
			url.PathEscape(k), k} {
			text = strings.ReplaceAll(text, form, "[redacted]")
		}
	}
	text = strings.Join(strings.Fields(domain.Printable(strings.ToValidUTF8(text, "\uFFFD"))), " ")
	if len(text) > maxMessage {
		text = strings.ToValidUTF8(text[:maxMessage], "") + "…"
	}
	return text
}

// basic returns the credentials of W&B's HTTP basic authentication, whose user is "api".
func basic(key string) string { return base64.StdEncoding.EncodeToString([]byte("api:" + key)) }

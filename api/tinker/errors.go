package tinker

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"

	"anneal/api/request"
	"anneal/domain"
	protocol "anneal/tinker"
)

// statusOf returns the HTTP status of an error. It differs from that of other operations because
// clients retry requests with 408, 409, 429 and 5xx, and raise an exception for every other status.
// So permanent errors have neither 409 nor 5xx.
func statusOf(f *domain.Error) int {
	switch f.Code {
	case domain.AlreadyExists, domain.Unimplemented:
		if f.Reason != request.ReasonMethod {
			return http.StatusBadRequest
		}
	case domain.DataLoss:
		return http.StatusGone
	case domain.DeadlineExceeded:
		return http.StatusServiceUnavailable
	case domain.OutOfRange:
		if f.Reason != request.ReasonBodyTooLarge {
			return http.StatusGone
		}
	}
	switch f.Reason {
	case reasonExpired:
		return http.StatusGone
	case protocol.BodyTooLarge:
		return http.StatusRequestEntityTooLarge
	case request.ReasonQuotaTooSmall:
		return http.StatusBadRequest
	}
	return request.HTTPStatus(f)
}

// reasonExpired is the reason of the error for a result that is no longer stored.
const reasonExpired = "RESULT_EXPIRED"

// WriteError writes the response to a request that failed with the error f.
func WriteError(w http.ResponseWriter, f *domain.Error, requestID string) {
	request.ObserveError(w, f)
	status, message := statusOf(f), domain.Printable(f.Message)
	body := protocol.Error{Code: f.Code.String(), Reason: f.Reason}
	switch status {
	case http.StatusUnauthorized:
		w.Header().Set("WWW-Authenticate", `Bearer realm="anneal"`)
		if f.Reason == request.ReasonOf(request.ErrNoKey) {
			message = "the request has no API key: send the header X-API-Key: API_KEY, or Authorization: Bearer API_KEY; " +
				"clients that require it may put tml- before the key"
		}
	case http.StatusServiceUnavailable, http.StatusTooManyRequests:
		if w.Header().Get("Retry-After") == "" {
			w.Header().Set("Retry-After", retryAfter)
		}
	case http.StatusInternalServerError:
		message += fmt.Sprintf(" (request %s)", requestID)
	}
	body.Detail = message
	if len(f.Violations) > 0 {
		shown := make([]domain.Violation, len(f.Violations))
		for i, v := range f.Violations {
			shown[i] = domain.Violation{Field: domain.Printable(v.Field), Description: domain.Printable(v.Description)}
		}
		body.Details, _ = json.Marshal(shown) // texts only
	}
	if writeJSON(w, status, body) != nil {
		w.WriteHeader(http.StatusInternalServerError)
	}
}

// retryAfter is the value of the header Retry-After in seconds.
const retryAfter = "1"

// quote quotes a text of a request for an error message.
func quote(text string) string {
	if len(text) > protocol.MaxDisplayedText {
		text = text[:protocol.MaxDisplayedText] + "…"
	}
	return strconv.QuoteToASCII(text)
}

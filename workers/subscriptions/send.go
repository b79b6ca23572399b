package subscriptions

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"syscall"
	"time"

	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
)

const (
	// maxResponse is the maximum number of bytes that are read of a response. The connection of a
	// longer response is closed and not used again.
	maxResponse   = 64 << 10
	maxRetryAfter = 24 * time.Hour
)

// errGone is the error for a webhook that responds with status 410 (Gone).
var errGone = errors.New("the webhook responds with status 410 (Gone)")

// A refusedError is the error for a response of a webhook with a status other than 2xx.
type refusedError struct {
	status int
	after  time.Duration // time from the response header Retry-After; 0 when the response has none
}

func (r refusedError) Error() string {
	if r.status/100 == 3 {
		return fmt.Sprintf("the webhook responds with the redirect status %d: redirects are not followed, so set the "+
			"final URL", r.status)
	}
	return fmt.Sprintf("the webhook responds with status %d instead of 2xx", r.status)
}

// A signer signs requests to a webhook with the newest signing secret and, until the previous
// secret expires, with that one too.
type signer struct {
	keys          domain.SigningKeys
	previous      *domain.SigningKeys
	previousUntil time.Time
}

// header returns the header webhook-signature for a request that is sent at the time now.
func (s signer) header(id string, now time.Time, body []byte) string {
	signatures := s.keys.Sign(id, now, body)
	if s.previous != nil && now.Before(s.previousUntil) {
		signatures += " " + s.previous.Sign(id, now, body)
	}
	return signatures
}

// signerOf returns the signer with the subscription's signing secrets, which it decrypts.
func (s *session) signerOf(ctx context.Context, state *domain.Subscription) (out signer, err error) {
	if state.Signing == nil {
		return signer{}, domain.Errorf(domain.DataLoss, "the subscription has no signing secret: rotate the secret")
	}
	if out.keys, err = s.openKeys(ctx, state.Signing); err != nil {
		return signer{}, err
	}
	if state.Previous != nil && s.Now().Before(*state.PreviousExpireTime) {
		previous, err := s.openKeys(ctx, state.Previous)
		if err != nil {
			return signer{}, err
		}
		out.previous, out.previousUntil = &previous, *state.PreviousExpireTime
	}
	return out, nil
}

func (s *session) openKeys(ctx context.Context, secret *domain.SigningSecret) (domain.SigningKeys, error) {
	text, err := s.Open(ctx, secrets.Reader{Purpose: secrets.SignWebhook, Resource: s.name}, s.name, secret.Value)
	if err != nil {
		return domain.SigningKeys{}, err
	}
	keys, ok := domain.ParseSigningKeys(text)
	if !ok {
		return keys, domain.Errorf(domain.DataLoss, "the signing secret of the subscription is damaged: rotate the secret")
	}
	return keys, nil
}

// send makes one attempt to send an event to the webhook at address. Users of the account see the
// error, so it contains nothing of the response but its status.
func (s *session) send(ctx context.Context, address string, sign signer, e eventlog.Event) error {
	body, err := s.encode(e)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return errors.New("webhook.url is not a valid URL")
	}
	now := s.Now()
	r.Header.Set("Content-Type", "application/cloudevents+json; charset=utf-8")
	r.Header.Set("User-Agent", "anneal")
	r.Header.Set("Webhook-Id", e.ID)
	r.Header.Set("Webhook-Timestamp", strconv.FormatInt(now.Unix(), 10))
	r.Header.Set("Webhook-Signature", sign.header(e.ID, now, body))
	response, err := s.Webhook.Do(r)
	if err != nil {
		return explain(err)
	}
	_, _ = io.CopyN(io.Discard, response.Body, maxResponse) // only the status of the response matters
	_ = response.Body.Close()
	switch {
	case response.StatusCode == http.StatusGone:
		return errGone
	case response.StatusCode/100 != 2:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 when the header is missing or has a date
		after := time.Duration(min(max(seconds, 0), int(maxRetryAfter.Seconds()))) * time.Second
		return refusedError{response.StatusCode, after}
	}
	return nil
}

// explain returns the error for a request without a response, for users of the account. It contains
// neither the URL, which may be secret, nor addresses of the server's network, nor anything that
// the webhook has sent.
func explain(err error) error {
	var failed *url.Error
	var lookup *net.DNSError
	var certificate *tls.CertificateVerificationError
	var code syscall.Errno
	switch {
	case errors.Is(err, outbound.ErrPrivate):
		return errors.New("the address of the webhook is not public, and this server connects only to public addresses: " +
			"use another address, or have the operator start the server with --fetch-private")
	case errors.As(err, &lookup):
		return errors.New("the webhook cannot be reached: its host name cannot be resolved")
	case errors.As(err, &failed) && failed.Timeout():
		return fmt.Errorf("the webhook does not respond within %s", RequestTimeout)
	case errors.As(err, &certificate):
		return errors.New("the webhook cannot be reached: its certificate cannot be verified: use one that is valid for " +
			"its host name, and that a public authority has signed")
	case errors.As(err, &code):
		return fmt.Errorf("the webhook cannot be reached: %w", code)
	}
	return errors.New("the webhook cannot be reached: it closes the connection, or does not respond in the protocol of " +
		"its URL")
}

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
	// maxResponse is the number of bytes of a response that are read, so that the connection can be
	// used again. The connection of a longer response is closed.
	maxResponse   = 64 << 10
	maxRetryAfter = 24 * time.Hour
)

// errGone is the error of a webhook that responds with status 410.
var errGone = errors.New("the webhook responds with status 410")

// A refusedError is a response with a status other than 2xx.
type refusedError struct {
	status int
	after  time.Duration // of the header Retry-After; 0 without it
}

func (r refusedError) Error() string {
	if r.status/100 == 3 {
		return fmt.Sprintf("the webhook responds with status %d, and redirects are not followed", r.status)
	}
	return fmt.Sprintf("the webhook responds with status %d", r.status)
}

// A signer signs requests with the newest signing secret and, until its time, the previous one.
type signer struct {
	keys          domain.SigningKeys
	previous      *domain.SigningKeys
	previousUntil time.Time
}

// header returns the signatures of a request that is sent at a time.
func (s signer) header(id string, at time.Time, body []byte) string {
	signatures := s.keys.Sign(id, at, body)
	if s.previous != nil && at.Before(s.previousUntil) {
		signatures += " " + s.previous.Sign(id, at, body)
	}
	return signatures
}

// signerOf opens the signing secrets of a subscription.
func (s *session) signerOf(ctx context.Context, state *domain.Subscription) (out signer, err error) {
	if state.Signing == nil {
		return signer{}, domain.Errorf(domain.DataLoss, "the subscription has no signing secret: rotate it")
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
		return keys, domain.Errorf(domain.DataLoss, "the signing secret is damaged: rotate it")
	}
	return keys, nil
}

// send sends an event to the address of a webhook once. Its errors are shown to the account's users:
// they contain nothing of the response but its status.
func (s *session) send(ctx context.Context, address string, sign signer, e eventlog.Event) error {
	body, err := s.encode(e)
	if err != nil {
		return err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, address, bytes.NewReader(body))
	if err != nil {
		return errors.New("the address of the webhook is not a URL")
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
	_, _ = io.CopyN(io.Discard, response.Body, maxResponse) // the status alone decides
	_ = response.Body.Close()
	switch {
	case response.StatusCode == http.StatusGone:
		return errGone
	case response.StatusCode/100 != 2:
		seconds, _ := strconv.Atoi(response.Header.Get("Retry-After")) // 0 when absent, or a date
		after := time.Duration(min(max(seconds, 0), int(maxRetryAfter.Seconds()))) * time.Second
		return refusedError{response.StatusCode, after}
	}
	return nil
}

// explain returns the error of a request without a response. It names neither the URL, which may be
// secret, nor addresses of this server's network, and quotes nothing that the webhook has sent.
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

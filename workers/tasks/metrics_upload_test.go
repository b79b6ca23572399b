package tasks_test

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs"
	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/workers/tasks"
)

// inClear is a command that records the event of an earlier version, which contains the whole URL
// unencrypted.
type inClear struct{ event domain.SupervisedJobCreated }

func (c inClear) Decide(domain.SupervisedJob, time.Time) (domain.Event[domain.SupervisedJob], error) {
	return c.event, nil
}

// TestMetricsAreUploaded checks that the metrics file of a job that has ended is PUT to its
// metricsFileSignedUrl, and only by a client that may connect to the address.
func TestMetricsAreUploaded(t *testing.T) {
	b := newHarness(t)
	var status atomic.Int64
	received := make(chan string, 9)
	var openError error
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		content, _ := io.ReadAll(r.Body)
		received <- r.Method + " " + r.URL.String() + " " + string(content)
		w.WriteHeader(int(status.Load()))
	}))
	t.Cleanup(web.Close)
	uploader := tasks.MetricsUploader{World: b.world, Blobs: b.blobs, Client: outbound.Client(true, time.Minute),
		Open: func(_ context.Context, _ secrets.Reader, _ domain.Name, sealed domain.Sealed) (domain.SecretValue, error) {
			return domain.SecretValue(sealed.Ciphertext), openError
		},
		Now:    time.Now,
		Logger: slog.New(slog.DiscardHandler)}
	job := func(id, url string, metrics bool) eventlog.Event {
		spec := domain.SupervisedSpec{Dataset: "accounts/acme/datasets/d", MetricsFileSignedURL: domain.SignedURL(url)}
		var create domain.Command[domain.SupervisedJob] = inClear{domain.SupervisedJobCreated{SupervisedSpec: spec}}
		if id != "recorded-in-clear" {
			var sealed *domain.Sealed
			if spec.MetricsFileSignedURL.HasSecret() {
				sealed = &domain.Sealed{KeyID: id, Ciphertext: []byte(url)}
			}
			create = domain.CreateSupervisedJob{ID: id, SealedMetricsURL: sealed, SupervisedSpec: spec}
		}
		created := do(b, domain.SupervisedJobs, id, create)
		name := named(domain.SupervisedJobs, id)
		if metrics {
			b.put(blobs.MetricsFile(name, created.ID), strings.NewReader("{}\n"))
		}
		result, err := eventlog.Do(t.Context(), b.log, b.world, eventlog.Request{Time: time.Now()},
			domain.IntendJob(name, domain.FailJob{Status: domain.Status{Code: "INTERNAL", Message: "no"}}))
		require.NoError(t, err)
		e, err := b.log.At(t.Context(), result.Position())
		require.NoError(t, err)
		return e
	}
	status.Store(http.StatusOK)
	ended := job("j", web.URL+"/metrics?signature=s", true)
	require.NoError(t, uploader.Upload(t.Context(), ended))
	require.Equal(t, "PUT /metrics?signature=s {}\n", <-received)

	for id, line := range map[string]struct {
		url     string
		metrics bool
	}{"no-url": {"", true}, "no-metrics": {web.URL, false}} {
		require.NoError(t, uploader.Upload(t.Context(), job(id, line.url, line.metrics)))
	}
	old := uploader
	old.Now = func() time.Time { return time.Now().Add(48 * time.Hour) }
	require.NoError(t, old.Upload(t.Context(), ended), "the URL of an old job has expired")
	require.Empty(t, received)

	require.NoError(t, uploader.Upload(t.Context(), job("plain", web.URL+"/plain", true)))
	require.Equal(t, "PUT /plain {}\n", <-received, "a URL without a query string is not sealed")
	require.NoError(t, uploader.Upload(t.Context(), job("recorded-in-clear", web.URL+"/old?signature=s", true)))
	require.Equal(t, "PUT /old?signature=s {}\n", <-received, "an earlier version recorded the whole URL")
	var logged bytes.Buffer
	lost := uploader
	lost.Logger = slog.New(slog.NewTextHandler(&logged, nil))
	openError = domain.Errorf(domain.NotFound, "erased")
	require.NoError(t, lost.Upload(t.Context(), ended), "an erased data key is final")
	require.Contains(t, logged.String(), "cannot be decrypted")
	openError = domain.Errorf(domain.FailedPrecondition, "no master key")
	require.Error(t, lost.Upload(t.Context(), ended), "another attempt follows")
	openError = nil
	require.Empty(t, received)

	status.Store(http.StatusForbidden)
	require.NoError(t, uploader.Upload(t.Context(), ended), "a rejection is final")
	status.Store(http.StatusServiceUnavailable)
	require.ErrorContains(t, uploader.Upload(t.Context(), ended), "responds with status 503", "another attempt follows")
	private := uploader
	private.Client, private.Logger = outbound.Client(false, time.Minute), slog.New(slog.NewTextHandler(&logged, nil))
	require.NoError(t, private.Upload(t.Context(), ended), "a private address is final")
	require.Contains(t, logged.String(), "private address")
	require.NotContains(t, logged.String(), "signature")
}

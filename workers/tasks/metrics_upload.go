package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"anneal/blobs"
	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/pubsub"
	"anneal/eventlog/secrets"
	"anneal/projections"
)

// A MetricsUploader uploads the metrics file of each supervised job that has ended to the job's
// metricsFileSignedUrl (HTTP PUT). It may upload a file several times. When the URL does not accept
// the file, it only logs that, because the result of the job does not depend on it.
type MetricsUploader struct {
	World  eventlog.Rows
	Blobs  *blobs.Store
	Client *http.Client // HTTP client for metricsFileSignedUrl
	Open   secrets.OpenFunc
	Now    func() time.Time
	Logger *slog.Logger
}

const metricsUploaderName = "metrics-upload"

// maxUploadAge is how long after the end of a job its metrics are uploaded. A new handler receives
// all events of the log, and the URLs of old jobs have expired.
const maxUploadAge = 24 * time.Hour

// ends are the types of the events that end a supervised job.
var ends = []string{"supervisedFineTuningJob.completed.v1", "supervisedFineTuningJob.failed.v1",
	"supervisedFineTuningJob.cancelled.v1", "supervisedFineTuningJob.expired.v1"}

// Handle registers the MetricsUploader for the events of supervised jobs.
func (u MetricsUploader) Handle(r *pubsub.Router) error {
	return pubsub.HandleEvents(r, metricsUploaderName, "events.*."+domain.SupervisedJobs.Collection+".*", u.Upload, nil)
}

// Task returns the upload of metrics as a Task of Resumption. It has no pending work, because the
// log does not record uploads.
func (u MetricsUploader) Task() Task {
	return Task{metricsUploaderName, u.Upload,
		func(*projections.View) iter.Seq[domain.Name] { return func(func(domain.Name) bool) {} }}
}

// Upload uploads the metrics file of the job that an event ends. It ignores all other events.
func (u MetricsUploader) Upload(ctx context.Context, e eventlog.Event) error {
	if !slices.Contains(ends, e.Type) || u.Now().Sub(e.Time) > maxUploadAge {
		return nil
	}
	if err := u.World.WaitFor(ctx, e.Position); err != nil {
		return err
	}
	state, _ := u.World.Row(e.Name)
	job, ok := state.(domain.SupervisedJob)
	if !ok || job.MetricsFileSignedURL == "" {
		return nil
	}
	url, err := u.urlOf(ctx, e.Name, job)
	if url == "" || err != nil {
		return err
	}
	key := blobs.MetricsFile(e.Name, u.World.Lookup(e.Name).CreateEvent)
	size, err := u.Blobs.Size(ctx, key)
	if domain.CodeOf(err) == domain.NotFound {
		return nil // the job ended before its first training step
	}
	if err != nil {
		return err
	}
	file, err := u.Blobs.Get(ctx, key)
	if err != nil {
		return err
	}
	defer file.Close()
	return u.put(ctx, e.Name, url, file, size)
}

// urlOf returns the job's metricsFileSignedUrl, decrypted; "" when it cannot be decrypted.
func (u MetricsUploader) urlOf(ctx context.Context, name domain.Name, job domain.SupervisedJob) (string, error) {
	if job.SealedMetricsURL == nil { // the URL contains no secret, or an earlier version of anneal recorded it unencrypted
		return string(job.MetricsFileSignedURL), nil
	}
	url, err := u.Open(ctx, secrets.Reader{Purpose: secrets.UploadMetrics, Resource: name}, name,
		*job.SealedMetricsURL)
	if code := domain.CodeOf(err); code == domain.NotFound || code == domain.DataLoss {
		u.Logger.Warn("the metrics file of a job is not uploaded: metricsFileSignedUrl cannot be "+
			"decrypted", "job", name, "error", err)
		return "", nil
	}
	return url.Reveal(), err
}

// put uploads the metrics file of a job. It returns an error when a retry may succeed, and only
// logs other failures.
func (u MetricsUploader) put(ctx context.Context, job domain.Name, url string, file io.Reader, size int64) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodPut, url, file)
	if err != nil {
		u.Logger.Warn("the metrics file of a job is not uploaded: metricsFileSignedUrl is not a valid URL", "job", job)
		return nil
	}
	request.ContentLength = size
	request.Header.Set("Content-Type", "application/jsonl")
	response, err := u.Client.Do(request)
	if errors.Is(err, outbound.ErrPrivate) {
		u.Logger.Warn("the metrics file of a job is not uploaded: the host of metricsFileSignedUrl has a private "+
			"address, which only --fetch-private permits", "job", job)
		return nil
	}
	if err != nil {
		return fmt.Errorf("upload the metrics file of %s: %w", job, outbound.Cause(err))
	}
	defer response.Body.Close()
	switch {
	case response.StatusCode < http.StatusMultipleChoices:
		return nil
	case response.StatusCode >= http.StatusInternalServerError:
		return fmt.Errorf("upload the metrics file of %s: metricsFileSignedUrl responds with status "+
			"%d; the upload is tried again", job, response.StatusCode)
	}
	u.Logger.Warn("the metrics file of a job is not uploaded: the server of metricsFileSignedUrl refuses "+
		"it", "job", job, "status",
		response.StatusCode, "host", strings.ToLower(request.URL.Host))
	return nil
}

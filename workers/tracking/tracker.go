// Package tracking sends the parameters, metrics and end states of training jobs to an experiment
// tracker: a server that speaks the protocol of Weights & Biases, or MLflow. The control plane
// sends, so that no worker receives the API key of a job's tracker.
package tracking

import (
	"context"
	"fmt"
	"net/url"
	"strings"
	"time"

	"anneal/blobs/outbound"
	"anneal/domain"
)

// DefaultAddress is the tracker of a server whose operator names none.
const DefaultAddress = "wandb=https://api.wandb.ai"

// requestTimeout bounds one request to a tracker.
const requestTimeout = 30 * time.Second

// A Service is the experiment tracker of an installation.
type Service struct {
	address string // KIND=URL
	tracker tracker
}

// ParseService returns the tracker at an address KIND=URL, where KIND is wandb or mlflow. The
// operator chooses the address, so it may be private, except for the host of DefaultAddress, which
// must resolve to a public address.
func ParseService(address string) (Service, error) {
	kind, base, _ := strings.Cut(address, "=")
	at, err := url.Parse(base)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.User != nil ||
		at.RawQuery != "" || at.Fragment != "" {
		return Service{}, fmt.Errorf("must be wandb=URL or mlflow=URL, where URL begins with http:// or https:// and has "+
			"no user, query or fragment, such as %s", DefaultAddress)
	}
	base = strings.TrimRight(base, "/")
	c := client{base: base, http: outbound.Client(address != DefaultAddress, requestTimeout)}
	switch kind {
	case "wandb":
		return Service{address, wandb{c}}, nil
	case "mlflow":
		return Service{address, mlflow{c}}, nil
	}
	return Service{}, fmt.Errorf("has the unknown kind %q: give wandb=URL or mlflow=URL", kind)
}

// A tracker is a protocol of experiment trackers. Its methods may be repeated after a failure or a
// crash without recording anything twice.
type tracker interface {
	// begin creates the run of a job, or opens it again, and sets the fields of run. Fields that
	// are already set are from an earlier call.
	begin(ctx context.Context, key domain.SecretValue, job description, run *run) error
	// log adds rows to the run. sent is the number of rows that the job has already added, and
	// repeated reports whether an earlier call with the same rows may have succeeded.
	log(ctx context.Context, key domain.SecretValue, run run, sent int, rows []row, repeated bool) error
	// keep tells the tracker that the run continues without new rows.
	keep(ctx context.Context, key domain.SecretValue, run run) error
	// end records the end of the run.
	end(ctx context.Context, key domain.SecretValue, run run, with ending) error
}

// A description holds what the tracker shows of a job, except for metrics.
type description struct {
	Job         domain.Name
	CreateEvent string // ID of the event that created the job; distinguishes jobs with the same name
	DisplayName string
	Project     string
	Entity      string
	RunID       string // "" unless the user names the run
	Start       time.Time
	Parameters  map[string]any
}

// A run identifies the job's run in the tracker.
type run struct {
	ID       string    `json:"id"`
	Project  string    `json:"project"` // name of the project in the tracker's response
	Entity   string    `json:"entity"`
	URL      string    `json:"url"`
	Earlier  int       `json:"earlier,omitempty"` // number of rows that the run had before the job
	Start    time.Time `json:"start"`
	Complete bool      `json:"complete"` // begin has succeeded
}

// A row holds the metrics of one step.
type row struct {
	Step   int                `json:"step"`
	Time   time.Time          `json:"time"`
	Values map[string]float64 `json:"values"`
}

// An ending is the end state of a job.
type ending struct {
	State string // of the job
	Time  time.Time
	Last  map[string]float64 // newest value of each metric
}

// failed and killed report whether the job has failed, and whether a user or a deadline stopped it.
func (e ending) failed() bool { return e.State == domain.JobFailedState }

func (e ending) killed() bool {
	return e.State != domain.JobCompletedState && e.State != domain.JobEarlyStoppedState && !e.failed()
}

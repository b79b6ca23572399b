// Package tracking sends the parameters, metrics and end states of training jobs to an experiment
// tracker: a server with the interface of Weights & Biases or of MLflow. The control plane sends
// them, so that no worker node gets the API key of the tracker.
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

// DefaultAddress is the tracker when the operator names none.
const DefaultAddress = "wandb=https://api.wandb.ai"

// requestTimeout is the maximum time of one request to a tracker.
const requestTimeout = 30 * time.Second

// A Service is the experiment tracker that an installation uses.
type Service struct {
	address string // address of the tracker as KIND=URL
	tracker tracker
}

// ParseService parses the address of a tracker, KIND=URL with the kind wandb or mlflow. Its host
// may have a private address, because the operator names it. Only the host of DefaultAddress must
// have a public address.
func ParseService(address string) (Service, error) {
	kind, base, _ := strings.Cut(address, "=")
	at, err := url.Parse(base)
	if err != nil || at.Host == "" || at.Scheme != "http" && at.Scheme != "https" || at.User != nil ||
		at.RawQuery != "" || at.Fragment != "" {
		return Service{}, fmt.Errorf("must be wandb=URL or mlflow=URL, where URL begins with http:// or "+
			"https:// and has no user, query or fragment, such as %s", DefaultAddress)
	}
	base = strings.TrimRight(base, "/")
	c := client{base: base, http: outbound.Client(address != DefaultAddress, requestTimeout)}
	switch kind {
	case "wandb":
		return Service{address, wandb{c}}, nil
	case "mlflow":
		return Service{address, mlflow{c}}, nil
	}
	return Service{}, fmt.Errorf("has the unknown kind %q: must be wandb=URL or mlflow=URL", kind)
}

// A tracker is the interface of a kind of experiment tracker. Each method can be repeated after a
// failure or a crash, and then records nothing twice.
type tracker interface {
	// begin creates the run of a job, or finds the existing one, and sets the fields of run. After
	// an earlier call, run has the fields that the earlier call has set.
	begin(ctx context.Context, key domain.SecretValue, job description, run *run) error
	// log adds rows to the run. sent is the number of the job's rows that the run already has.
	// repeated says that an earlier call with the same rows may have succeeded.
	log(ctx context.Context, key domain.SecretValue, run run, sent int, rows []row, repeated bool) error
	// keep tells the tracker that the run continues although there are no new rows.
	keep(ctx context.Context, key domain.SecretValue, run run) error
	// end marks the run as ended.
	end(ctx context.Context, key domain.SecretValue, run run, with ending) error
}

// A description is what the tracker shows about a job, except metrics.
type description struct {
	Job         domain.Name
	CreateEvent string // ID of the event that created the job, which tells jobs with the same name apart
	DisplayName string
	Project     string
	Entity      string
	RunID       string // run ID that the user has chosen; "" for none
	Start       time.Time
	Parameters  map[string]any
}

// A run identifies the run of a job in the tracker.
type run struct {
	ID       string    `json:"id"`
	Project  string    `json:"project"` // name of the project as the tracker returned it
	Entity   string    `json:"entity"`
	URL      string    `json:"url"`
	Earlier  int       `json:"earlier,omitempty"` // number of rows that the run had before this job
	Start    time.Time `json:"start"`
	Complete bool      `json:"complete"` // begin has succeeded, so all other fields are set
}

// A row has the metrics of one training step.
type row struct {
	Step   int                `json:"step"`
	Time   time.Time          `json:"time"`
	Values map[string]float64 `json:"values"`
}

// An ending describes how a job ended.
type ending struct {
	State string // end state of the job
	Time  time.Time
	Last  map[string]float64 // newest value of each metric of the job
}

// failed reports whether the job has failed, and killed whether a user or a deadline stopped it.
func (e ending) failed() bool { return e.State == domain.JobFailedState }

func (e ending) killed() bool {
	return e.State != domain.JobCompletedState && e.State != domain.JobEarlyStoppedState && !e.failed()
}

package rest

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"time"

	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/projections"
	"anneal/projections/query"
)

// Rollout is the wire type of a response that a reinforcement job has generated and scored. Its
// fields about the score have the names of those in PreviewResult.
type Rollout struct {
	Name           string             `json:"name"`
	CreateTime     time.Time          `json:"createTime"`
	Step           int                `json:"step"`
	Epoch          float64            `json:"epoch"`
	Evaluation     bool               `json:"evaluation"`
	Row            int                `json:"row"`
	Candidate      int                `json:"candidate"`
	Input          json.RawMessage    `json:"input" query:"-"`
	Response       string             `json:"response"`
	Success        bool               `json:"success"`
	Score          float64            `json:"score"`
	PerMetricEvals map[string]float64 `json:"perMetricEvals"`
	Reason         string             `json:"reason"`
	Truncated      bool               `json:"truncated"`
}

type rolloutState struct{ *engines.Rollout }

// Exists implements domain.State.
func (rolloutState) Exists() bool { return true }

var rolloutFields = fieldsOf[Rollout]()

// maxRolloutReads bounds the concurrent requests of an account that read rollouts, because each
// reads and parses a file of up to engines.MaxRolloutsBytes.
const maxRolloutReads = 4

// listRollouts lists the rollouts in the newest rollouts file of a job. event is the ID of the event that
// created the job; attempts is the number of its newest attempt.
func listRollouts(c *call, job domain.Name, event string, attempts int) (any, error) {
	p := c.Params()
	q, m := request.ReadListQuery(c.Call, p, reflect.TypeFor[Rollout]())
	q.DefaultOrder = "step,evaluation,row,candidate"
	if err := p.Err(); err != nil {
		return nil, err
	}
	release, ok := c.Busy.Enter("rollouts "+c.Account, maxRolloutReads)
	if !ok {
		return nil, domain.Errorf(domain.ResourceExhausted, "accounts/%[2]s has %[1]d lists of rollouts in progress, "+
			"which is the limit: wait until one ends", maxRolloutReads, c.Account)
	}
	defer release()
	file, err := rolloutsFile(c, job, event, attempts)
	if err != nil {
		return nil, err
	}
	if file != nil {
		defer file.Close()
	}
	var damage error
	rows := func(yield func(*projections.Row[rolloutState]) bool) {
		if file == nil {
			return
		}
		damage = engines.ReadRollouts(file, func(at *engines.Rollout, _ []byte) bool {
			return yield(&projections.Row[rolloutState]{Name: rolloutName(job, at), State: rolloutState{at},
				CreateTime: at.Time})
		})
	}
	page, err := query.List(rows, renderRollout, rolloutFields, q)
	if errors.Is(damage, bufio.ErrTooLong) {
		damage = domain.Errorf(domain.DataLoss, "the stored rollouts of %s are damaged: the next attempt of the job, if "+
			"there is one, writes them again", job)
	}
	if err := cmp.Or(damage, err); err != nil {
		return nil, err
	}
	return request.ListResponse("rollouts", page.Items, page.NextPageToken, page.TotalSize, m)
}

// rolloutsFile opens the rollouts file of the newest attempt that has written one; nil if there is
// none. event is the ID of the event that created the job; attempts is the number of its newest attempt.
func rolloutsFile(c *call, job domain.Name, event string, attempts int) (blobs.Content, error) {
	key, err := c.Uploads.Blobs.NewestOfAttempts(c.Ctx, blobs.RolloutsRoot(job, event), attempts)
	if err != nil || key == "" {
		return nil, err
	}
	file, err := c.Uploads.Blobs.Get(c.Ctx, key)
	if domain.CodeOf(err) == domain.NotFound { // the file was deleted together with the job
		return nil, nil
	}
	return file, err
}

// rolloutName returns the resource name of a rollout. Its ID consists of the step, the row and the
// number of the candidate, with the prefix "eval-" in an evaluation.
func rolloutName(job domain.Name, r *engines.Rollout) domain.Name {
	kind := ""
	if r.Evaluation {
		kind = "eval-"
	}
	return domain.Name(fmt.Sprintf("%s/rollouts/%s%d-%d-%d", job, kind, r.Step, r.Row, r.Candidate))
}

func renderRollout(row *projections.Row[rolloutState], out *Rollout) {
	r := row.State
	*out = Rollout{Name: string(row.Name), CreateTime: r.Time.UTC(), Step: r.Step, Epoch: r.Epoch,
		Evaluation: r.Evaluation, Row: r.Row, Candidate: r.Candidate, Input: r.Input, Response: r.Response,
		Success: r.Valid, Score: r.Score, PerMetricEvals: r.Metrics, Reason: r.Reason, Truncated: r.Truncated}
	if out.PerMetricEvals == nil {
		out.PerMetricEvals = map[string]float64{}
	}
}

// rolloutOperations returns the operations on the rollouts of reinforcement jobs. Trainer jobs have
// none, because their responses are generated and scored elsewhere.
func rolloutOperations(s *Service) []request.Operation {
	res := reinforcementJobs
	list := func(c *call) (any, error) {
		row, err := res.row(c)
		if err != nil {
			return nil, err
		}
		return listRollouts(c, row.Name, row.CreateEvent, row.State.Attempt)
	}
	return []request.Operation{
		{ID: "list" + res.singular() + "Rollouts", Method: "GET",
			Path: request.CollectionPath + res.kind.Collection + "/{id}/rollouts", Tag: res.kind.Collection,
			Summary: "List the rollouts of " + withArticle(res.noun), Permission: request.Read,
			Description: fmt.Sprintf("A rollout is a response that the model in training has generated, with its score. "+
				"Rollouts are listed some seconds after they are scored, and deleted with the job. A job keeps %d MiB of "+
				"rollouts: those of its newest steps, and an even sample of those of earlier steps; at most %d MiB of one "+
				"step.", engines.MaxRolloutsBytes>>20,
				engines.MaxStepRolloutsBytes>>20),
			Query: request.ListParameters, Response: request.PageType("rollouts", reflect.TypeFor[Rollout]()),
			Handle: s.handle(list)},
	}
}

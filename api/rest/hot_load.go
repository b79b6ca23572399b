package rest

import (
	"fmt"
	"time"

	"anneal/api/wire"
	"anneal/domain"
)

// HotLoad describes which weights of trainer jobs a deployment's replicas serve, are loading, and
// could not load.
type HotLoad struct {
	Served  *HotWeights   `json:"served,omitempty"`
	Loading *HotWeights   `json:"loading,omitempty"`
	Refused *HotWeights   `json:"refused,omitempty"`
	Status  domain.Status `json:"status"`
}

// HotWeights describes weights that a trainer job has stored. Position is the log position of the
// job's newest event when it stored them.
type HotWeights struct {
	Job       string     `json:"job"`
	TrainStep int        `json:"trainStep"`
	Step      int        `json:"step,omitempty"`
	Model     string     `json:"model,omitempty"`
	Adapter   bool       `json:"adapter"`
	Position  uint64     `json:"position"`
	MadeTime  time.Time  `json:"madeTime"`
	SwapTime  *time.Time `json:"swapTime,omitempty"`
}

// renderHotLoad returns the deployment's hot-loaded weights; nil unless it has enableHotLoad.
func renderHotLoad(d *domain.Deployment) *HotLoad {
	if !d.EnableHotLoad {
		return nil
	}
	out := &HotLoad{Served: renderWeights(d.Hot.Served), Loading: renderWeights(d.Hot.Offered),
		Refused: renderWeights(d.Hot.Refused), Status: d.Hot.Status}
	if out.Status.Code == "" {
		out.Status = domain.StatusOf(nil)
	}
	if out.Served != nil {
		out.Served.SwapTime = wire.TimestampOf(&d.Hot.Time)
	}
	return out
}

// modelVersion returns the name of the weights that replicas serve or load: the baseModel, or the
// model that a train step created. For the weights of a checkpoint, which is no model, it is
// JOB@TRAINSTEP.STEP.
func modelVersion(d *domain.Deployment, hot *domain.HotWeights) string {
	switch {
	case hot == nil:
		return d.BaseModel
	case hot.Model != "":
		return string(hot.Model)
	}
	return fmt.Sprintf("%s@%d.%d", hot.Job, hot.TrainStep, hot.Step)
}

func renderWeights(w *domain.HotWeights) *HotWeights {
	if w == nil {
		return nil
	}
	return &HotWeights{Job: string(w.Job), TrainStep: w.TrainStep, Step: w.Step, Model: string(w.Model),
		Adapter: w.Adapter, Position: w.Position, MadeTime: w.Made}
}

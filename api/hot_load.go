package api

import (
	"time"

	"anneal/api/wire"
	"anneal/domain"
)

// HotLoad is how far a deployment is with the weights of trainer jobs.
type HotLoad struct {
	Served  *HotWeights   `json:"served,omitempty"`
	Loading *HotWeights   `json:"loading,omitempty"`
	Refused *HotWeights   `json:"refused,omitempty"`
	Status  domain.Status `json:"status"`
}

// HotWeights are weights that a trainer job had at a position of the log.
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

// shownHotLoad is nil where no weights are taken.
func shownHotLoad(d *domain.Deployment) *HotLoad {
	if !d.EnableHotLoad {
		return nil
	}
	shown := &HotLoad{Served: shownWeights(d.Hot.Served), Loading: shownWeights(d.Hot.Offered), Refused: shownWeights(d.Hot.Refused), Status: d.Hot.Status}
	if shown.Status.Code == "" {
		shown.Status = domain.StatusOf(nil)
	}
	if shown.Served != nil {
		shown.Served.SwapTime = wire.TimestampOf(&d.Hot.Time)
	}
	return shown
}

func shownWeights(w *domain.HotWeights) *HotWeights {
	if w == nil {
		return nil
	}
	return &HotWeights{Job: string(w.Job), TrainStep: w.TrainStep, Step: w.Step, Model: string(w.Model), Adapter: w.Adapter, Position: w.Position, MadeTime: w.Made}
}

package projections

import (
	"reflect"

	"anneal/domain"
)

// A Reservation is the reservation of a model's name by a job, whose outputModel is the model.
type Reservation struct {
	Model domain.Name
	Job   domain.Name
	at    uint64 // log position of the job's event that reserved the name; the earlier reservation has precedence
}

// reservationOf returns the reservation of a job; false when the job reserves no name.
func reservationOf(row Row[domain.Job]) (Reservation, bool) {
	model := domain.ReservedOutput(row.Name, row.State)
	return Reservation{model, row.Name, row.ReserveVersion}, model != ""
}

// precedes reports whether r was recorded before o in the log.
func (r Reservation) precedes(o Reservation) bool { return r.at < o.at }

// Reservations maps each name of a model that jobs reserve to the job that reserved it first.
func (v *View) Reservations() map[domain.Name]domain.Name {
	first := map[domain.Name]Reservation{}
	for row := range UnfinishedJobs(v) {
		if r, ok := reservationOf(row); ok {
			if earlier, taken := first[r.Model]; !taken || r.precedes(earlier) {
				first[r.Model] = r
			}
		}
	}
	holders := make(map[domain.Name]domain.Name, len(first))
	for model, r := range first {
		holders[model] = r.Job
	}
	return holders
}

// ReservedBy returns the job that reserves the name of a model, if it is another job than self;
// false when there is none.
func (v *View) ReservedBy(model, self domain.Name) (holder domain.Name, reserved bool) {
	var first Reservation
	for row := range UnfinishedJobsIn(v, model.Account()) {
		if r, ok := reservationOf(row); ok && r.Model == model && r.Job != self && (!reserved || r.precedes(first)) {
			first, reserved = r, true
		}
	}
	return first.Job, reserved
}

// ReservedOutput returns the model whose name the resource self reserves in the given state: see
// domain.ReservedOutput. It returns "" for a resource that is not a job, and for a nil state.
func ReservedOutput(self domain.Name, state any) domain.Name {
	if state == nil {
		return ""
	}
	pointer := reflect.New(reflect.TypeOf(state))
	pointer.Elem().Set(reflect.ValueOf(state))
	if job, ok := pointer.Interface().(domain.Job); ok {
		return domain.ReservedOutput(self, job)
	}
	return ""
}

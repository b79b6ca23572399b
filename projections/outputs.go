package projections

import (
	"reflect"

	"anneal/domain"
)

// A Reservation is the reservation of a model's name by the job whose outputModel it is.
type Reservation struct {
	Model domain.Name
	Job   domain.Name
	at    uint64 // position of the job's event that reserved the name
}

// reservationOf returns the reservation of a job; false when the job reserves no name.
func reservationOf(row Row[domain.Job]) (Reservation, bool) {
	model := domain.ReservedOutput(row.Name, row.State)
	return Reservation{model, row.Name, row.ReserveVersion}, model != ""
}

// precedes reports whether r was recorded before o, in the order of the log.
func (r Reservation) precedes(o Reservation) bool { return r.at < o.at }

// Reservations returns the names of models that jobs reserve, each with the job that reserved it
// first.
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

// ReservedBy returns the job, other than self, that reserves the name of a model; false when there
// is none.
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

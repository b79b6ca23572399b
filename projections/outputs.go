package projections

import (
	"iter"
	"reflect"
	"slices"

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

// ReservedBy returns the job that was the first to reserve the name of a model, without the job
// self; false when there is none.
func (v *View) ReservedBy(model, self domain.Name) (holder domain.Name, reserved bool) {
	var first Reservation
	for kind := range domain.JobKinds() {
		for r := range v.tables[kind.CollectionID()].reservations(model) {
			if r.Job != self && (!reserved || r.precedes(first)) {
				first, reserved = r, true
			}
		}
	}
	return first.Job, reserved
}

// reservations yields the reservations of a model's name by jobs in the table.
func (t *table) reservations(model domain.Name) iter.Seq[Reservation] {
	if t.outputs != nil {
		all, _ := t.outputs.Get(model)
		return slices.Values(all)
	}
	return func(yield func(Reservation) bool) {
		for row := range t.unfinished(model.Account()) {
			job, _ := JobOf(row)
			if r, ok := reservationOf(job); ok && r.Model == model && !yield(r) {
				return
			}
		}
	}
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

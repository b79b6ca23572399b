package projections

import (
	"iter"
	"maps"
	"slices"
	"time"

	"anneal/domain"
)

// References yields a pair of names for each reference in the view: a resource, and a resource that
// it refers to (see domain.Referrer). The second one need not exist.
func (v *View) References() iter.Seq2[domain.Name, domain.Name] {
	return func(yield func(referrer, used domain.Name) bool) {
		for _, collection := range v.Collections() {
			for referrer, used := range v.tables[collection].references() {
				if !yield(referrer, used) {
					return
				}
			}
		}
	}
}

// Collections returns the collections of the view, in alphabetical order.
func (v *View) Collections() []string { return slices.Sorted(maps.Keys(v.tables)) }

// RefersToOthers reports whether resources of a collection can refer to other resources: see
// domain.Referrer.
func (v *View) RefersToOthers(collection string) bool {
	table := v.tables[collection]
	return table != nil && table.refers()
}

// Referrers returns the names of the resources that refer to the named resource, ordered by kind
// and name. A resource with referrers cannot be deleted.
func (v *View) Referrers(name domain.Name) (referrers []domain.Name) {
	for referrer, used := range v.References() {
		// The references of one resource are consecutive, so comparing with the last referrer is
		// enough.
		if used == name && referrer != name && (len(referrers) == 0 || referrers[len(referrers)-1] != referrer) {
			referrers = append(referrers, referrer)
		}
	}
	return referrers
}

// Lost returns the names of the resources to which state refers but which do not exist, because they
// were deleted before the reference was recorded. state is the state of the resource self.
func (v *View) Lost(self domain.Name, state domain.Referrer) (lost []domain.Name) {
	for used := range namesOf(self, state) {
		if table := v.tables[used.Collection()]; table == nil {
			continue
		} else if _, exists := table.state(used); !exists {
			lost = append(lost, used)
		}
	}
	return lost
}

// BeingDeleted returns the names of the resources to which a change of the resource self adds a
// reference although a request to delete them is in effect at now. previous and state are the
// states of self before and after the change.
func (v *View) BeingDeleted(self domain.Name, previous, state any, now time.Time) (deleting []domain.Name) {
	already := slices.Collect(namesOf(self, previous))
	for used := range namesOf(self, state) {
		table := v.tables[used.Collection()]
		if table == nil || slices.Contains(already, used) {
			continue
		}
		referred, _ := table.state(used)
		if d, ok := referred.(interface{ Requested(time.Time) bool }); ok && d.Requested(now) {
			deleting = append(deleting, used)
		}
	}
	return deleting
}

// namesOf yields the names to which state, the state of the resource self, refers; none if state is
// nil.
func namesOf(self domain.Name, state any) iter.Seq[domain.Name] {
	return func(yield func(domain.Name) bool) {
		referrer, ok := state.(domain.Referrer)
		if s, _ := state.(domain.State); !ok || s == nil || !s.Exists() {
			return
		}
		for _, used := range referrer.References(self) {
			if used != "" && !yield(domain.Name(used)) {
				return
			}
		}
	}
}

func (t *table) refers() bool {
	_, ok := t.kind.NewRow("").Value().(domain.Referrer)
	return ok
}

// references yields a pair of names for each reference of the table's resources: see
// View.References.
func (t *table) references() iter.Seq2[domain.Name, domain.Name] {
	return func(yield func(referrer, used domain.Name) bool) {
		if !t.refers() {
			return
		}
		t := t.of(everyAccount)
		t.rows.Scan(func(name domain.Name, one cell) bool {
			for used := range namesOf(name, one.row.Pointer()) {
				if !yield(name, used) {
					return false
				}
			}
			return true
		})
	}
}

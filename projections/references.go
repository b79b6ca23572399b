package projections

import (
	"iter"
	"maps"
	"slices"
	"time"

	"anneal/domain"
)

// References yields each resource with the name of each that it works with:
// see domain.User. Names of what does not exist are among them.
func (v *View) References() iter.Seq2[domain.Name, domain.Name] {
	return func(yield func(user, used domain.Name) bool) {
		for _, collection := range v.Collections() {
			for user, used := range v.tables[collection].uses() {
				if !yield(user, used) {
					return
				}
			}
		}
	}
}

// Collections are those that the view holds, in order.
func (v *View) Collections() []string { return slices.Sorted(maps.Keys(v.tables)) }

// UsesOthers reports whether resources of a collection can work with others.
func (v *View) UsesOthers(collection string) bool {
	table := v.tables[collection]
	return table != nil && table.user()
}

// Users returns the resources that work with one, in the order of kinds and
// then names: it cannot be deleted from under them.
func (v *View) Users(name domain.Name) (users []domain.Name) {
	for user, used := range v.References() {
		if used == name && user != name && (len(users) == 0 || users[len(users)-1] != user) { // those of one user come together
			users = append(users, user)
		}
	}
	return users
}

// Lost returns the names that a state works with and that do not exist: those
// of a delete that came first.
func (v *View) Lost(self domain.Name, state domain.User) (lost []domain.Name) {
	for used := range namesOf(self, state) {
		if table := v.tables[used.Collection()]; table == nil {
			continue
		} else if _, there := table.state(used); !there {
			lost = append(lost, used)
		}
	}
	return lost
}

// Leaving returns the names that a state works with, which before does not,
// and whose deletion is requested at a time.
func (v *View) Leaving(self domain.Name, before, state any, now time.Time) (leaving []domain.Name) {
	already := slices.Collect(namesOf(self, before))
	for used := range namesOf(self, state) {
		table := v.tables[used.Collection()]
		if table == nil || slices.Contains(already, used) {
			continue
		}
		there, _ := table.state(used)
		if d, ok := there.(interface{ Requested(time.Time) bool }); ok && d.Requested(now) {
			leaving = append(leaving, used)
		}
	}
	return leaving
}

// namesOf yields the valid names that a state works with.
func namesOf(self domain.Name, state any) iter.Seq[domain.Name] {
	return func(yield func(domain.Name) bool) {
		user, ok := state.(domain.User)
		if there, _ := state.(domain.State); !ok || there == nil || !there.Exists() {
			return
		}
		for _, used := range user.Uses(self) {
			if used != "" && !yield(domain.Name(used)) {
				return
			}
		}
	}
}

func (t *table) user() bool {
	_, ok := t.kind.NewRow("").Value().(domain.User)
	return ok
}

// uses yields the table's resources with what they work with.
func (t *table) uses() iter.Seq2[domain.Name, domain.Name] {
	return func(yield func(user, used domain.Name) bool) {
		if !t.user() {
			return
		}
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

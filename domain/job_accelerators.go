package domain

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// MaxJobAcceleratorRows is the maximum number of rows of a table of JobAccelerators.
const MaxJobAcceleratorRows = 64

// maxAccelerators is the maximum number of accelerators that one replica or one node of a job gets.
const maxAccelerators = 1024

// Methods lists the methods of training.
var Methods = []string{MethodSupervised, MethodDPO, MethodReinforcement, MethodRLOR}

// JobAccelerators is the operator's table of the accelerators that jobs get on each of their nodes.
// If a row applies to a job, the row replaces the estimate from JobSpec.Memory.
//
// The rows are in the order of precedence, and the first one that applies decides: rows with a
// method come before rows for every method, and smaller bounds before larger ones.
type JobAccelerators []JobAcceleratorRow

// A JobAcceleratorRow applies to the jobs that train a model of at most MaxParameterCount
// parameters by Method. A row with a bound does not apply to models of unknown size.
type JobAcceleratorRow struct {
	// method of the jobs, one of Methods; "" for every method
	Method string `json:"method,omitempty"`
	// maximum size of the models, in parameters; 0 for every size
	MaxParameterCount Count `json:"maxParameterCount,omitempty"`
	// type of the accelerators; "" stands for the result of FleetAccelerator
	AcceleratorType  string `json:"acceleratorType,omitempty"`
	AcceleratorCount int    `json:"acceleratorCount"` // accelerators on each node; 0 stands for CPUs only
}

// compare orders the rows of a table: it returns a negative number if r comes before o, in the
// order that JobAccelerators defines.
func (r JobAcceleratorRow) compare(o JobAcceleratorRow) int {
	last := func(unset bool) int {
		if unset {
			return 1
		}
		return 0
	}
	return cmp.Or(last(r.Method == "")-last(o.Method == ""), cmp.Compare(r.Method, o.Method),
		last(r.MaxParameterCount == 0)-last(o.MaxParameterCount == 0),
		cmp.Compare(r.MaxParameterCount, o.MaxParameterCount))
}

// rowFor returns the first row that applies to a job with this method and number of parameters;
// false when no row applies.
func (t JobAccelerators) rowFor(method string, parameters Count) (JobAcceleratorRow, bool) {
	for _, row := range t {
		if (row.Method == "" || row.Method == method) &&
			(row.MaxParameterCount == 0 || parameters > 0 && parameters <= row.MaxParameterCount) {
			return row, true
		}
	}
	return JobAcceleratorRow{}, false
}

func (t JobAccelerators) check() error {
	var v Violations
	v.Require(len(t) <= MaxJobAcceleratorRows, "rows", "has %d rows: a table must have at most %d", len(t),
		MaxJobAcceleratorRows)
	for i, row := range t[:min(len(t), MaxJobAcceleratorRows)] {
		at := func(field string) string { return fmt.Sprintf("rows[%d].%s", i, field) }
		oneOf(&v, at("method"), row.Method, Methods...)
		v.Require(row.MaxParameterCount >= 0, at("maxParameterCount"),
			"is %d: it must not be negative; 0 applies to models of every size", row.MaxParameterCount)
		oneOf(&v, at("acceleratorType"), row.AcceleratorType, ShapeAcceleratorTypes...)
		v.Require(row.AcceleratorCount >= 0 && row.AcceleratorCount <= maxAccelerators, at("acceleratorCount"),
			"is %d: it must be from 0 to %d; 0 stands for CPUs only", row.AcceleratorCount, maxAccelerators)
		v.Require(row.AcceleratorCount != 0 || unspecified(row.AcceleratorType), at("acceleratorType"),
			"is %s, but acceleratorCount is 0: leave the type out, or set a count", row.AcceleratorType)
		for j := range i {
			v.Require(row.compare(t[j]) != 0, at("maxParameterCount"),
				"has the same method and bound as rows[%d]: leave one of them out", j)
		}
	}
	return v.Err()
}

// JobAcceleratorsSet holds all rows of the table of an account, in the order of precedence.
type JobAcceleratorsSet struct {
	Rows JobAccelerators `json:"rows"`
}

func (e JobAcceleratorsSet) Evolve(a *Account) { a.JobAccelerators = e.Rows }

// SetJobAccelerators replaces the table of an account. The table of the account System applies to
// the accounts without rows of their own. Attempts that are running keep their accelerators.
type SetJobAccelerators struct{ Rows JobAccelerators }

func (c SetJobAccelerators) Decide(a Account, _ time.Time) (Event[Account], error) {
	if err := c.Rows.check(); err != nil {
		return nil, err
	}
	rows := JobAccelerators{}
	for _, row := range c.Rows {
		row.AcceleratorType = specified(row.AcceleratorType)
		rows = append(rows, row)
	}
	slices.SortFunc(rows, JobAcceleratorRow.compare)
	switch {
	case !a.Exists():
		return nil, notFound("account")
	case slices.Equal(a.JobAccelerators, rows):
		return nil, nil
	}
	return JobAcceleratorsSet{rows}, nil
}

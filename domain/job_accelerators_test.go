package domain_test

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
)

func TestJobAcceleratorsAreSet(t *testing.T) {
	type D = decision[domain.Account]
	f := events[domain.Account]
	small := domain.JobAcceleratorRow{MaxParameterCount: 8e9, AcceleratorCount: 1}
	large := domain.JobAcceleratorRow{MaxParameterCount: 70e9, AcceleratorType: "VENDOR_A_H100_80GB", AcceleratorCount: 8}
	dpo := domain.JobAcceleratorRow{Method: domain.MethodDPO, MaxParameterCount: 8e9, AcceleratorCount: 2}
	dpoAny := domain.JobAcceleratorRow{Method: domain.MethodDPO, AcceleratorCount: 4}
	set := func(rows ...domain.JobAcceleratorRow) domain.SetJobAccelerators {
		return domain.SetJobAccelerators{Rows: rows}
	}
	made := domain.AccountCreated{}
	ordered := domain.JobAcceleratorsSet{Rows: domain.JobAccelerators{dpo, dpoAny, small, large}}
	unspecified := small
	unspecified.AcceleratorType = "ACCELERATOR_TYPE_UNSPECIFIED"
	decide(t, domain.Accounts, []D{
		{name: "set", given: f(made), when: set(large, dpoAny, small, dpo), then: ordered},
		{name: "set twice, in another order", given: f(made, ordered), when: set(small, dpo, large, dpoAny)},
		{name: "an unspecified type", given: f(made), when: set(unspecified),
			then: domain.JobAcceleratorsSet{Rows: domain.JobAccelerators{small}}},
		{name: "removed", given: f(made, ordered), when: set(),
			then: domain.JobAcceleratorsSet{Rows: domain.JobAccelerators{}}},
		{name: "removed twice", given: f(made), when: set()},
		{name: "set for a missing account", when: set(small), fault: "NOT_FOUND"},
		{name: "too many rows", given: f(made), when: set(slices.Repeat([]domain.JobAcceleratorRow{small}, 65)...),
			fault: "INVALID_FIELDS", says: "rows: has 65 rows: a table must have at most 64"},
	})
}

// TestJobAcceleratorsNameAllViolations checks that the error of an invalid table names each invalid
// field of each row.
func TestJobAcceleratorsNameAllViolations(t *testing.T) {
	account := domain.Account{State: domain.AccountReady}
	_, err := domain.SetJobAccelerators{Rows: domain.JobAccelerators{
		{Method: "guessing", MaxParameterCount: -1, AcceleratorType: "ABACUS", AcceleratorCount: 1025},
		{MaxParameterCount: 8, AcceleratorCount: -1},
		{MaxParameterCount: 8, AcceleratorType: "VENDOR_A_L4_24GB"},
	}}.Decide(account, noon)
	var invalid *domain.Error
	require.ErrorAs(t, err, &invalid)
	var fields []string
	for _, v := range invalid.Violations {
		fields = append(fields, v.Field)
	}
	require.Equal(t, []string{"rows[0].method", "rows[0].maxParameterCount", "rows[0].acceleratorType",
		"rows[0].acceleratorCount", "rows[1].acceleratorCount", "rows[2].acceleratorType",
		"rows[2].maxParameterCount"}, fields)
	require.ErrorContains(t, err, "rows[0].acceleratorCount: is 1025: it must be from 0 to 1024")
	require.ErrorContains(t, err, "rows[2].maxParameterCount: has the same method and bound as rows[1]")
}

// TestJobAcceleratorsDecide checks which row decides, and that the formula decides without one.
func TestJobAcceleratorsDecide(t *testing.T) {
	const a100, h100 = "VENDOR_A_A100_80GB", "VENDOR_A_H100_80GB"
	var account domain.Account
	event, err := domain.SetJobAccelerators{Rows: domain.JobAccelerators{
		{MaxParameterCount: 70e9, AcceleratorType: h100, AcceleratorCount: 6},
		{MaxParameterCount: 8e9, AcceleratorCount: 3},
		{MaxParameterCount: 1e9, AcceleratorCount: 0},
		{Method: domain.MethodDPO, MaxParameterCount: 8e9, AcceleratorCount: 5},
		{Method: domain.MethodReinforcement, AcceleratorCount: 7},
	}}.Decide(domain.Account{State: domain.AccountReady}, noon)
	require.NoError(t, err)
	event.Evolve(&account)
	some := func(t string, n int) map[string]int { return map[string]int{t: n} }
	for name, tc := range map[string]struct {
		method     string
		parameters domain.Count
		fleet      string
		want       map[string]int
	}{
		"the smallest bound that holds the model": {domain.MethodSupervised, 7e9, a100, some(a100, 3)},
		"a bound is inclusive":                    {domain.MethodSupervised, 8e9, a100, some(a100, 3)},
		"above a bound, with a type":              {domain.MethodSupervised, 8e9 + 1, a100, some(h100, 6)},
		"a type on a fleet of CPUs":               {domain.MethodSupervised, 70e9, domain.NoAccelerator, some(h100, 6)},
		"a count on a fleet of CPUs":              {domain.MethodSupervised, 8e9, domain.NoAccelerator, nil},
		"CPUs":                                    {domain.MethodSupervised, 5e8, a100, nil},
		"the method before every method":          {domain.MethodDPO, 5e8, a100, some(a100, 5)},
		"above the bound of the method":           {domain.MethodDPO, 9e9, a100, some(h100, 6)},
		"a method without a bound":                {domain.MethodReinforcement, 400e9, a100, some(a100, 7)},
		"a model of unknown size":                 {domain.MethodSupervised, 0, a100, some(a100, 1)},
		"unknown size, a row without a bound":     {domain.MethodReinforcement, 0, a100, some(a100, 7)},
		"above all bounds: the formula":           {domain.MethodSupervised, 71e9, a100, some(a100, 4)},
	} {
		t.Run(name, func(t *testing.T) {
			model := domain.ModelSize{ParameterCount: tc.parameters, ContextLength: 512, Precision: "BF16",
				Attention: domain.Attention{Layers: 32, KVHeads: 8, HeadSize: 128}}
			job := domain.JobSpec{Method: tc.method, Nodes: 2}
			require.Equal(t, tc.want, job.NeedOn(model, tc.fleet, account.JobAccelerators).Resources.Accelerators)
		})
	}
}

// TestJobAcceleratorsRemain checks that a control plane of an earlier version, which does not know the
// table, does not reset it when it updates the account.
func TestJobAcceleratorsRemain(t *testing.T) {
	account := domain.Account{JobAccelerators: domain.JobAccelerators{{AcceleratorCount: 2}}}
	var updated domain.AccountUpdated
	require.NoError(t, json.Unmarshal([]byte(`{"email":"b@example.org","displayName":"B"}`), &updated))
	updated.Evolve(&account)
	require.Len(t, account.JobAccelerators, 1)
}

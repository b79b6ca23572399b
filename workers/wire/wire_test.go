package wire

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

func row(step int, values map[string]float64) engines.Metrics {
	return engines.Metrics{Step: step, Steps: 9, Values: values}
}

func TestMergeRows(t *testing.T) {
	loss := func(v float64) map[string]float64 { return map[string]float64{"train/loss": v} }
	for name, one := range map[string]struct {
		rows, more, want []engines.Metrics
	}{
		"appended":  {[]engines.Metrics{row(1, loss(3))}, []engines.Metrics{row(2, loss(2))}, []engines.Metrics{row(1, loss(3)), row(2, loss(2))}},
		"in order":  {nil, []engines.Metrics{row(2, loss(2)), row(1, loss(3))}, []engines.Metrics{row(1, loss(3)), row(2, loss(2))}},
		"replaced":  {[]engines.Metrics{row(1, loss(3))}, []engines.Metrics{row(1, loss(4))}, []engines.Metrics{row(1, loss(4))}},
		"no values": {[]engines.Metrics{row(1, nil)}, []engines.Metrics{row(1, loss(4))}, []engines.Metrics{row(1, loss(4))}},
		"an evaluation": {[]engines.Metrics{row(1, loss(3))}, []engines.Metrics{row(1, map[string]float64{"eval/loss": 5})},
			[]engines.Metrics{row(1, map[string]float64{"train/loss": 3, "eval/loss": 5})}},
	} {
		require.Equal(t, one.want, MergeRows(one.rows, one.more...), name)
	}
}

func TestMergeRowsSharesNoValues(t *testing.T) {
	first := row(1, map[string]float64{"train/loss": 3})
	MergeRows([]engines.Metrics{first}, row(1, map[string]float64{"eval/loss": 5}))
	require.Equal(t, map[string]float64{"train/loss": 3}, first.Values)
}

func TestUnmarshal(t *testing.T) {
	for name, one := range map[string]struct {
		data    string
		code    domain.Code
		message string
	}{
		"understood":      {`{"version":1,"verdict":"accepted","later":"field"}`, domain.OK, ""},
		"newer":           {`{"version":2,"verdict":7}`, domain.FailedPrecondition, "version 2"},
		"none":            {`{}`, domain.FailedPrecondition, "version 0"},
		"refused":         {`{"version":2,"refused":{"code":9,"reason":"R","message":"no"}}`, domain.FailedPrecondition, "no"},
		"no JSON":         {`{"version`, domain.InvalidArgument, "JSON"},
		"other than said": {`{"version":1,"verdict":7}`, domain.InvalidArgument, "verdict"},
	} {
		t.Run(name, func(t *testing.T) {
			var receipt Receipt
			err := Unmarshal([]byte(one.data), &receipt)
			require.Equal(t, one.code, domain.CodeOf(err))
			if err != nil {
				require.Contains(t, err.Error(), one.message)
			}
		})
	}
}

func TestMarshalIsBounded(t *testing.T) {
	_, err := Marshal(Receipt{Message: strings.Repeat("x", MaxMessage)})
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
}

func TestFaultsTravel(t *testing.T) {
	require.NoError(t, FaultOf(nil).Err())
	fault := &domain.Error{Code: domain.Unavailable, Reason: "R", Message: "m"}
	require.Equal(t, fault, FaultOf(fmt.Errorf("wrapped: %w", fault)).with("m").Err())
	require.Equal(t, domain.Unknown, domain.CodeOf(FaultOf(errors.New("other")).Err()))
}

func (f *Fault) with(message string) *Fault { f.Message = message; return f }

func FuzzUnmarshal(f *testing.F) {
	f.Add([]byte(`{"version":1,"attempts":[{"job":"accounts/a/supervisedFineTuningJobs/j","rows":[{"step":1,"values":{"a":1}}]}]}`))
	f.Add([]byte(`{"version":1,"keep":["x"],"acked":{"x":-1},"train":[{"base":{"files":[{"name":"../x"}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, message := range []any{new(Heartbeat), new(Orders), new(Report), new(CompletionPart), new(TranscriptionPart)} {
			if err := Unmarshal(data, message); err != nil {
				require.NotEmpty(t, err.Error())
			}
		}
	})
}

// A refusal that names fields still names them on the other side.
func TestViolationsCrossTheWire(t *testing.T) {
	var v domain.Violations
	v.Add("logitBias", "is wrong")
	v.Add("minP", "is wrong too")
	data, err := Marshal(CompletionPart{Version: Version, Fault: FaultOf(v.Err())})
	require.NoError(t, err)
	var part CompletionPart
	require.NoError(t, Unmarshal(data, &part))
	require.Equal(t, v.Err(), part.Fault.Err())
}

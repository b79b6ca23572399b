package protocol

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

func metricRow(step int, values map[string]float64) engines.Metrics {
	return engines.Metrics{Step: step, Steps: 9, Values: values}
}

func TestMergeRows(t *testing.T) {
	type rows = []engines.Metrics
	loss := func(v float64) map[string]float64 { return map[string]float64{"train/loss": v} }
	for name, test := range map[string]struct {
		before, more, want rows
	}{
		"appended": {rows{metricRow(1, loss(3))}, rows{metricRow(2, loss(2))},
			rows{metricRow(1, loss(3)), metricRow(2, loss(2))}},
		"in order": {nil, rows{metricRow(2, loss(2)), metricRow(1, loss(3))},
			rows{metricRow(1, loss(3)), metricRow(2, loss(2))}},
		"replaced":  {rows{metricRow(1, loss(3))}, rows{metricRow(1, loss(4))}, rows{metricRow(1, loss(4))}},
		"no values": {rows{metricRow(1, nil)}, rows{metricRow(1, loss(4))}, rows{metricRow(1, loss(4))}},
		"an evaluation": {rows{metricRow(1, loss(3))}, rows{metricRow(1, map[string]float64{"eval/loss": 5})},
			rows{metricRow(1, map[string]float64{"train/loss": 3, "eval/loss": 5})}},
	} {
		require.Equal(t, test.want, MergeRows(test.before, test.more...), name)
	}
}

func TestMergeRowsCopiesValues(t *testing.T) {
	first := metricRow(1, map[string]float64{"train/loss": 3})
	MergeRows([]engines.Metrics{first}, metricRow(1, map[string]float64{"eval/loss": 5}))
	require.Equal(t, map[string]float64{"train/loss": 3}, first.Values)
}

func TestUnmarshal(t *testing.T) {
	for name, test := range map[string]struct {
		data    string
		code    domain.Code
		message string
	}{
		"valid":         {`{"version":1,"verdict":"accepted","later":"field"}`, domain.OK, ""},
		"newer version": {`{"version":2,"verdict":7}`, domain.FailedPrecondition, "version 2"},
		"no version":    {`{}`, domain.FailedPrecondition, "version 0"},
		"refused": {`{"version":2,"refused":{"code":9,"reason":"R","message":"no"}}`, domain.FailedPrecondition,
			"no"},
		"refused in this version": {`{"version":1,"refused":{"code":9,"reason":"R","message":"no"}}`,
			domain.FailedPrecondition, "no"},
		"not JSON":   {`{"version`, domain.InvalidArgument, "JSON"},
		"wrong type": {`{"version":1,"verdict":7}`, domain.InvalidArgument, "verdict"},
	} {
		t.Run(name, func(t *testing.T) {
			var reply ReportReply
			err := Unmarshal([]byte(test.data), &reply)
			require.Equal(t, test.code, domain.CodeOf(err))
			if err != nil {
				require.Contains(t, err.Error(), test.message)
			}
		})
	}
}

func TestMarshalRefusesLargeMessages(t *testing.T) {
	_, err := Marshal(ReportReply{Message: strings.Repeat("x", MaxMessage)})
	require.Equal(t, domain.ResourceExhausted, domain.CodeOf(err))
}

func TestErrorsAreEncoded(t *testing.T) {
	require.NoError(t, ErrorOf(nil).Err())
	failure := &domain.Error{Code: domain.Unavailable, Reason: "R", Message: "m"}
	require.Equal(t, failure, ErrorOf(fmt.Errorf("wrapped: %w", failure)).with("m").Err())
	require.Equal(t, domain.Unknown, domain.CodeOf(ErrorOf(errors.New("other")).Err()))
}

func (e *Error) with(message string) *Error { e.Message = message; return e }

func FuzzUnmarshal(f *testing.F) {
	const job = "accounts/a/supervisedFineTuningJobs/j"
	f.Add([]byte(`{"version":1,"attempts":[{"job":"` + job + `","rows":[{"step":1,"values":{"a":1}}]}]}`))
	f.Add([]byte(`{"version":1,"keep":["x"],"acked":{"x":-1},"train":[{"base":{"files":[{"name":"../x"}]}}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, message := range []any{new(Heartbeat), new(Assignments), new(Report), new(CompletionMessage),
			new(TranscriptionMessage)} {
			if err := Unmarshal(data, message); err != nil {
				require.NotEmpty(t, err.Error())
			}
		}
	})
}

func TestErrorsKeepTheirViolations(t *testing.T) {
	var v domain.Violations
	v.Add("logitBias", "is wrong")
	v.Add("minP", "is wrong too")
	data, err := Marshal(CompletionMessage{Version: Version, Error: ErrorOf(v.Err())})
	require.NoError(t, err)
	var received CompletionMessage
	require.NoError(t, Unmarshal(data, &received))
	require.Equal(t, v.Err(), received.Error.Err())
}

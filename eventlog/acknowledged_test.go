package eventlog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestUnknownErrorsAreUncertain checks that acknowledged returns an error other than ErrUncertain
// only for error codes that the server certainly returns before it writes the event. For all other
// codes it must return ErrUncertain, because the server may return them after the write, such as
// when a sync fails.
func TestUnknownErrorsAreUncertain(t *testing.T) {
	const answer = `{"error":{"code":503,"err_code":%d,"description":"some failure"},"stream":"EVENTS","seq":0}`
	for code, certain := range map[int]bool{
		codeWrongSequence: true, codeTooLarge: true, codeUnavailable: true, codeSubjectBusy: true,
		10077: false, 10023: false, 10047: false, 12345: false,
	} {
		_, err := acknowledged(fmt.Appendf(nil, answer, code))
		require.Error(t, err, code)
		require.Equal(t, !certain, errors.Is(err, ErrUncertain), code)
		require.Equal(t, code == codeUnavailable || code == codeSubjectBusy, notTaken(err), code)
	}
}

package eventlog

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// The server answers some errors after it has written the event, such as when
// syncing it fails. Only refusals that are known to come before are faults.
func TestUnknownRefusalsAreUncertain(t *testing.T) {
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

package events

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOfSubject checks that ofSubject returns the history of one subject for a filter that begins
// with the subject, and the history unchanged for any other filter.
func TestOfSubject(t *testing.T) {
	for filter, want := range map[string]string{
		`subject = "accounts/acme/datasets/d"`:                                "events.acme.datasets.d",
		`subject="accounts/acme/datasets/d" AND type = "dataset.created.v1"`:  "events.acme.datasets.d",
		`subject = "accounts/acme" AND actor = "x"`:                           "events.acme.accounts.acme",
		`subject = "accounts/acme/datasets/d" OR actor = "x"`:                 "events.acme.>",
		`subject = "accounts/acme/datasets/d" AND actor = "x" OR actor = "y"`: "events.acme.>",
		`subject = "accounts/other/datasets/d"`:                               "events.acme.>",
		`NOT subject = "accounts/acme/datasets/d"`:                            "events.acme.>",
		`subject = "accounts/acme/datasets/*"`:                                "events.acme.>",
		`actor = "x" AND subject = "accounts/acme/datasets/d"`:                "events.acme.>",
	} {
		narrow, whole := history{subject: "events.acme.>"}.ofSubject(filter)
		require.Equal(t, want, narrow.subject, filter)
		require.Equal(t, filter == `subject = "accounts/acme/datasets/d"`, whole, filter)
	}
	narrow, whole := history{subject: "events.>"}.ofSubject(`subject = "accounts/other/datasets/d"`)
	require.Equal(t, "events.other.datasets.d", narrow.subject)
	require.True(t, whole)
	narrow, whole = history{subject: "events.acme.datasets.e"}.ofSubject(`subject = "accounts/acme/datasets/d"`)
	require.Equal(t, "events.acme.datasets.e", narrow.subject)
	require.False(t, whole)
}

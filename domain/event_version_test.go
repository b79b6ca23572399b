package domain_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/internal/testutil"
)

// TestEventVersions checks that eventVersions has each type of event that control planes of event
// version 1 cannot read: otherwise it would be recorded during an upgrade, and stop them. The file
// has the types of version 1, and never changes.
func TestEventVersions(t *testing.T) {
	path := filepath.Join("testdata", "event_types_of_version_1.txt")
	first := map[string]bool{}
	for line := range strings.Lines(string(testutil.ReadFile(t, path))) {
		first[strings.TrimSpace(line)] = true
	}
	for _, kind := range domain.Kinds {
		for name := range kind.EventTypes() {
			version := domain.EventVersionOf(name)
			require.LessOrEqual(t, version, domain.EventVersion, name)
			require.Equal(t, first[name], version == 1, "%s is not of version 1: add it to eventVersions with a "+
				"new EventVersion, so that control planes of earlier releases need not read it", name)
		}
	}
}

package engines_test

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/domain"
	"anneal/engines"
)

func TestErrPanicked(t *testing.T) {
	for name, do := range map[string]func(){
		"value": func() { panic("planted") },
		"index": func() { _ = []int{}[len(t.Name())-len(t.Name())] },
	} {
		var err error
		func() {
			defer func() { err = engines.ErrPanicked(recover()) }()
			do()
		}()
		var got *domain.Error
		require.True(t, errors.As(err, &got))
		require.Equal(t, domain.Internal, got.Code)
		require.Equal(t, engines.EnginePanicked, got.Reason)
		require.Contains(t, got.Message, "panicked_test.go:", name)
	}
}

package weights_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func BenchmarkConvert(b *testing.B) {
	values := make([]float32, 4<<20)
	for i := range values {
		values[i] = float32(i%4096)/512 - 4
	}
	f := withNumbers(values...)
	for _, dtype := range []string{"BF16", "F16"} {
		b.Run(dtype, func(b *testing.B) {
			b.SetBytes(int64(4 * len(values)))
			for b.Loop() {
				_, err := f.directory().Convert(io.Discard, "model.safetensors", dtype)
				require.NoError(b, err)
			}
		})
	}
}

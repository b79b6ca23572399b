package gguf

import (
	"strings"

	"anneal/domain"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/quant"
)

// A FileType selects the types of the matrices in a GGUF file. Its numbers are those of llama.cpp's
// llama_ftype and of general.file_type. Vectors are always stored as F32.
type FileType uint32

// The supported file types.
const (
	F32    FileType = 0
	F16    FileType = 1
	Q8_0   FileType = 7
	Q4_K_M FileType = 15 // most matrices in Q4_K, some in Q6_K: see matrixType
	Q5_K_M FileType = 17 // most matrices in Q5_K, some in Q6_K: see matrixType
	BF16   FileType = 32
)

// fileTypes are the names of the file types, and the type of most of their matrices, by descending
// precision.
var fileTypes = []struct {
	file   FileType
	name   string
	matrix quant.Type
}{
	{F32, "f32", quant.F32}, {F16, "f16", quant.F16}, {BF16, "bf16", quant.BF16}, {Q8_0, "q8_0", quant.Q8_0},
	{Q5_K_M, "q5_k_m", quant.Q5_K}, {Q4_K_M, "q4_k_m", quant.Q4_K},
}

// FileTypes returns the names of the supported file types, such as "f32, f16 … or q4_k_m".
func FileTypes() string {
	var names []string
	for _, one := range fileTypes {
		names = append(names, one.name)
	}
	last := len(names) - 1
	return strings.Join(names[:last], ", ") + " or " + names[last]
}

// ParseFileType returns the file type with a name. It returns InvalidArgument for a name that
// FileTypes does not list.
func ParseFileType(name string) (FileType, error) {
	for _, one := range fileTypes {
		if one.name == strings.ToLower(name) {
			return one.file, nil
		}
	}
	return 0, domain.Errorf(domain.InvalidArgument, "type: must be %s, is %q", FileTypes(), name)
}

// String returns the name of the file type.
func (f FileType) String() string {
	for _, one := range fileTypes {
		if one.file == f {
			return one.name
		}
	}
	return ""
}

// matrix returns the type of most matrices in a file of this type.
func (f FileType) matrix() quant.Type {
	for _, one := range fileTypes {
		if one.file == f {
			return one.matrix
		}
	}
	return quant.F32
}

// Mixed reports whether the file type stores some matrices with more bits than most.
func (f FileType) Mixed() bool { return f == Q4_K_M || f == Q5_K_M }

// largeLayers is the number of layers of models with 70 billion parameters (Llama 2 and 3, Qwen2).
// Their attn_v matrices are small, because eight query heads share one.
const largeLayers = 80

// A role is the place of a matrix in a model, by which matrixType chooses the type of the matrix.
type role struct {
	head  bool         // the matrix computes the logits: the head, or the embeddings if they are tied
	layer int          // number of the layer; -1 if the matrix is in none
	m     llama.Module // projection of the layer; only used if layer is not -1
}

// matrixType returns the type of a matrix in a file, before its row length is considered. The
// rules are those of llama.cpp's quantizer (llama_tensor_get_type) for models without experts:
//
//   - q4_k_m and q5_k_m store the matrix that computes the logits in Q6_K;
//   - they store attn_v and ffn_down in Q6_K in the first and the last eighth of the layers, and in
//     every third layer between;
//   - q4_k_m stores attn_v of the other layers in Q5_K in models of 80 layers, other than Qwen3;
//   - all other matrices have the type that the file type names.
func matrixType(c *llama.Config, file FileType, r role) quant.Type {
	as := file.matrix()
	switch {
	case !file.Mixed():
	case r.head:
		return quant.Q6_K
	case r.layer < 0:
	case (r.m == llama.Value || r.m == llama.Down) && moreBits(r.layer, c.Layers):
		return quant.Q6_K
	case r.m == llama.Value && as == quant.Q4_K && c.Layers == largeLayers && c.ModelType != "qwen3":
		return quant.Q5_K
	}
	return as
}

// moreBits reports whether a layer is in the first or the last eighth of the layers, or is every
// third layer between them.
func moreBits(layer, layers int) bool {
	eighth := layers / 8
	return layer < eighth || layer >= 7*layers/8 || (layer-eighth)%3 == 2
}

// fitting returns as, the type of a matrix. If columns, the row length, is not a multiple of that
// type's block, fitting returns the type that llama.cpp uses instead.
func fitting(as quant.Type, columns int) quant.Type {
	smaller := map[quant.Type]quant.Type{quant.Q4_K: quant.Q5_0, quant.Q5_K: quant.Q5_1, quant.Q6_K: quant.Q8_0}
	for columns%as.Block() != 0 {
		next, ok := smaller[as]
		if !ok {
			next = quant.F16
		}
		as = next
	}
	return as
}

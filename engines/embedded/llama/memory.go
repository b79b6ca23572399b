package llama

import (
	"bufio"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/safetensors"
)

// trainingBytes is the memory that training needs for each parameter, in bytes: four for the
// float32 value, and four for each of its two packed copies. If all parameters are trained, each
// core needs four more for a gradient, and the optimizer twelve for three values.
const trainingBytes = 12

// Fits returns an error if serving the model needs more memory than is free: FailedPrecondition if
// it needs more than the machine has, otherwise ResourceExhausted. reserve is the memory in bytes
// that serving needs in addition to the model.
func (r *Reader) Fits(reserve int64) error {
	weights, scratch := r.Bytes()
	return fits(weights+scratch+reserve, machineMemory(), "serve", fmt.Sprintf("%d parameters in %s, plus %s",
		r.Config.Parameters(), amount(weights), amount(scratch+reserve)))
}

// Bytes returns the memory of the served model in bytes. weights is the size of the projections in
// their packed formats, and of the embeddings. scratch is the memory that only loading needs.
func (r *Reader) Bytes() (weights, scratch int64) {
	c := &r.Config
	table := int64(c.VocabSize) * int64(c.HiddenSize)
	weights = table * width(r.file, embedName)
	if !c.TieWordEmbeddings {
		weights += table * width(r.file, headName)
	}
	for layer := range c.Layers {
		for m := range Modules {
			out, in := m.Shape(c)
			if r.adapter != nil { // projections with a merged adapter are float32
				weights += 4 * int64(out*in)
			} else {
				weights += int64(out*in) * width(r.file, projection(layer, m))
			}
		}
	}
	// loading converts the embeddings, or one layer, at a time: each parameter needs four bytes as
	// float32, and two bytes for a 16-bit copy
	return weights, 6 * max(table, int64(c.layerParameters()))
}

func width(file *safetensors.Shards, tensor string) int64 {
	info, _ := file.Lookup(tensor)
	return int64(info.DType.Size())
}

// FitsTraining returns an error like Fits if training needs more memory than is free. adapter
// reports whether an adapter is trained instead of all parameters. cores is the number of cores
// that train.
func (c *Config) FitsTraining(adapter bool, cores int) error {
	doing, each := "train an adapter on", trainingBytes
	if !adapter {
		doing, each = "train all of", trainingBytes+4*(3+cores)
	}
	return fits(c.Parameters()*int64(each), machineMemory(), doing,
		fmt.Sprintf("%d parameters, %d bytes each", c.Parameters(), each))
}

// FitsPool returns an error like Fits if a training pool needs more memory than is free. passes is
// the memory for its passes in bytes, with data of at most tokens tokens.
func (c *Config) FitsPool(tokens int, passes int64) error {
	return fits(c.Parameters()*trainingBytes+passes, machineMemory(), "train adapters on",
		fmt.Sprintf("%d parameters, %d bytes each, and %s for passes with data of at most %d tokens",
			c.Parameters(), trainingBytes, amount(passes), tokens), "lower the maximum number of tokens of a datum")
}

// FreeMemory returns the memory of the machine in bytes that is free; 0 if it is unknown.
func FreeMemory() int64 { return machineMemory().free }

// SegmentBytes returns an upper bound of the memory in bytes of a forward and backward pass of
// segments with tokens tokens, one target each, and adapters up to a rank.
func (c *Config) SegmentBytes(tokens, rank int) int64 {
	return 4 * (int64(tokens)*int64(c.segmentFloats(rank)) + headRows*int64(c.VocabSize))
}

// segmentFloats returns the number of float32 values that a pass keeps for each token with one
// target.
func (c *Config) segmentFloats(rank int) int {
	h, q, kv, wide := c.HiddenSize, c.Heads*c.HeadDim, c.KVHeads*c.HeadDim, c.IntermediateSize
	panel := int(kernel.PackedBytes(1, c.HeadDim) / 4)
	forward := 4*h + 2 + 2*q + 2*kv + 3*wide + int(Modules)*rank + q + kv + c.Heads + c.KVHeads // with head norms
	backward := wide + h + 2*q + 2*kv + int(Modules)*rank
	// packed keys and values of a head, and two blocks of scores
	attention := 2*c.HeadDim + 2*panel + 2*attendRows
	ends := 6*h + q + 3                                             // embedding, final norm, last layer
	return (c.Layers*(forward+backward) + attention + ends) * 9 / 8 // the arena has a reserve
}

// TrainedBytes returns the memory in bytes of a trained adapter: four vectors (parameters, gradient
// and two moments), and its packed copies.
func (c *Config) TrainedBytes(rank int, modules []Module) int64 {
	sum := int64(0)
	for _, input := range inputs {
		pairs, in := 0, 0
		for _, m := range input {
			if !slices.Contains(modules, m) {
				continue
			}
			out, width := m.Shape(c)
			pairs, in = pairs+1, width
			sum += 16*int64(rank)*int64(in+out) + kernel.PackedBytes(rank, out) + kernel.PackedBytes(out, rank)
		}
		sum += kernel.PackedBytes(in, pairs*rank) + kernel.PackedBytes(pairs*rank, in)
	}
	return int64(c.Layers) * sum
}

// A memory has the free and the total memory of a machine in bytes; 0 if unknown.
type memory struct{ free, total int64 }

// fits returns an error if need, in bytes, exceeds the free memory of m. doing is the verb in the
// message, how describes the parts of need, and others are further remedies.
func fits(need int64, m memory, doing, how string, others ...string) error {
	if m.free == 0 || need <= m.free {
		return nil
	}
	f := domain.Errorf(domain.ResourceExhausted,
		"the embedded engine needs %s of memory to %s this model (%s), but the machine has %s free of %s: %s",
		amount(need), doing, how, amount(m.free), amount(m.total),
		strings.Join(append([]string{"use a larger machine or a smaller model"}, others...), ", or "))
	if m.total > 0 && need > m.total {
		f.Code = domain.FailedPrecondition
	}
	f.Reason = "MODEL_TOO_LARGE"
	return f
}

// amount formats n bytes in MiB or GiB.
func amount(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// machineMemory returns the total memory, and the memory that is available without swapping
// according to Linux. The limits of the control group reduce both.
func machineMemory() memory {
	m := memoryIn("/proc/meminfo")
	limit, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")
	if limit > 0 && limit < m.total {
		m.total, m.free = limit, max(min(m.free, limit-used), 1)
	}
	return m
}

// memoryIn parses a file with the format of /proc/meminfo. It returns zeros if it cannot read the
// file.
func memoryIn(path string) (m memory) {
	f, err := os.Open(path)
	if err != nil {
		return m
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		kib, _ := strconv.ParseInt(fields[1], 10, 64)
		switch fields[0] {
		case "MemTotal:":
			m.total = kib << 10
		case "MemAvailable:":
			m.free = kib << 10
		}
	}
	return m
}

// number returns the number in the file at path; 0 if there is none.
func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

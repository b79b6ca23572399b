package llama

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"

	"anneal/domain"
	"anneal/engines/embedded/safetensors"
)

// trainingBytes is the memory for each parameter of a model in training, at the
// most: it is read as 32 bits and packed twice beside that. Where all parameters
// are trained, each core keeps a gradient, and the optimiser three numbers more.
const trainingBytes = 12

// Fits answers a fault with figures when the model needs more memory to be
// served than is free: FailedPrecondition when this machine has never so much,
// else ResourceExhausted. reserve is for what is kept beside the weights.
func (r *Reader) Fits(reserve int64) error {
	weights, room := r.Bytes()
	return fits(weights+room+reserve, machineMemory(), "serve", fmt.Sprintf("%d parameters in %s, and %s beside them", r.Config.Parameters(), amount(weights), amount(room+reserve)))
}

// Bytes is the memory of the weights as they are served: each projection in as
// many bits as it is stored in, and the embeddings. room is taken besides while
// the model is read.
func (r *Reader) Bytes() (weights, room int64) {
	c := &r.Config
	table := int64(c.VocabSize) * int64(c.HiddenSize)
	weights = table * width(r.file, embedName)
	if !c.TieWordEmbeddings {
		weights += table * width(r.file, headName)
	}
	for layer := range c.Layers {
		for m := range Modules {
			out, in := m.Shape(c)
			if r.adapter != nil { // with its update the numbers need 32 bits
				weights += 4 * int64(out*in)
			} else {
				weights += int64(out*in) * width(r.file, projection(layer, m))
			}
		}
	}
	// As 32 bits, and once more before its numbers are in their places.
	return weights, 6 * max(table, int64(c.layerParameters()))
}

func width(file *safetensors.Shards, tensor string) int64 {
	info, _ := file.Lookup(tensor)
	return int64(info.DType.Size())
}

// FitsTraining is Fits for a training: of an adapter, or of all parameters on
// so many cores.
func (c *Config) FitsTraining(adapter bool, cores int) error {
	doing, each := "tune an adapter on", trainingBytes
	if !adapter {
		doing, each = "train all of", trainingBytes+4*(3+cores)
	}
	return fits(c.Parameters()*int64(each), machineMemory(), doing, fmt.Sprintf("%d parameters, %d bytes each", c.Parameters(), each))
}

// A memory is a machine's, in bytes; 0 is not known.
type memory struct{ free, total int64 }

// fits holds a need, which how explains, against the memory.
func fits(need int64, m memory, doing, how string) error {
	if m.free == 0 || need <= m.free {
		return nil
	}
	f := domain.Errorf(domain.ResourceExhausted,
		"to %s this model the embedded engine needs %s of memory (%s), and the machine has %s free of %s: use a machine with more, or a smaller model",
		doing, amount(need), how, amount(m.free), amount(m.total))
	if m.total > 0 && need > m.total {
		f.Code = domain.FailedPrecondition
	}
	f.Reason = "MODEL_TOO_LARGE"
	return f
}

// amount is bytes in words.
func amount(n int64) string {
	if n < 1<<30 {
		return fmt.Sprintf("%.1f MiB", float64(n)/(1<<20))
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/(1<<30))
}

// machineMemory is what Linux says there is and can be had without swapping, or
// what its control group allows when that is less.
func machineMemory() memory {
	m := memoryIn("/proc/meminfo")
	limit, used := number("/sys/fs/cgroup/memory.max"), number("/sys/fs/cgroup/memory.current")
	if limit > 0 && limit < m.total {
		m.total, m.free = limit, max(min(m.free, limit-used), 1)
	}
	return m
}

// memoryIn reads a file such as /proc/meminfo.
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

// number is the content of a file that holds one; 0 when it does not.
func number(path string) int64 {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	n, _ := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
	return n
}

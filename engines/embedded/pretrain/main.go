// Command pretrain trains the embedded engine's base model on a generated grammar of ten
// instruction tasks, measures its accuracy on held-out prompts, and writes its Hugging Face
// directory with a model card. Equal seed, step count and kernel level produce equal bits.
//
//	go run ./engines/embedded/pretrain -out engines/embedded/base/model
//	go run ./engines/embedded/pretrain -examples examples
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"

	"anneal/engines"
	"anneal/engines/embedded/kernel"
	"anneal/engines/embedded/llama"
	"anneal/engines/embedded/safetensors"
	"anneal/engines/embedded/tokenizer"
	"anneal/engines/embedded/train"
)

// options are the flags of the command.
type options struct {
	out      string // directory to which the model is written
	examples string // directory to which the example files are written
	tune     string // directory of a model to fine-tune on the new tasks
	unseen   string // directory of a model to fine-tune on the unseen tasks
	settings engines.TrainSettings
	seed     uint64
	steps    int
	batch    int // number of tokens in a step
	rate     float64
	workers  int
}

func main() {
	log.SetFlags(0)
	var o options
	flag.StringVar(&o.out, "out", "", "train a model and write it to this directory")
	flag.StringVar(&o.examples, "examples", "", "write the example files to this directory")
	flag.StringVar(&o.tune, "tune", "", "fine-tune the model in this directory on each new task and print its accuracy")
	flag.StringVar(&o.unseen, "unseen", "",
		"fine-tune the model in this directory on each unseen task with the default settings, and print its accuracy")
	flag.IntVar(&o.settings.Epochs, "tune-epochs", demoEpochs, "number of epochs of each fine-tuning run")
	flag.Float64Var(&o.settings.LearningRate, "tune-rate", 0,
		"learning rate of each fine-tuning run; 0 selects the engine's default")
	flag.IntVar(&o.settings.BatchSizeSamples, "tune-samples", 0,
		"samples per fine-tuning step; 0 selects the engine's default")
	flag.IntVar(&o.settings.LoraRank, "tune-rank", 8, "rank of the adapter; 0 tunes all parameters")
	flag.Uint64Var(&o.seed, "seed", 1, "random seed for the initial weights and the examples")
	flag.IntVar(&o.steps, "steps", 9000, "optimizer steps")
	flag.IntVar(&o.batch, "batch", 2048, "tokens per step")
	flag.Float64Var(&o.rate, "rate", 4e-3, "peak learning rate")
	flag.IntVar(&o.workers, "workers", runtime.GOMAXPROCS(0), "number of worker goroutines")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, o); err != nil {
		log.Fatal("pretrain: ", err)
	}
}

func run(ctx context.Context, o options) error {
	switch {
	case o.examples != "":
		return writeExamples(o.examples, o.seed)
	case o.tune != "":
		return tuneAll(ctx, o.tune, o.settings)
	case o.unseen != "":
		return tuneUnseen(ctx, o.unseen, o.seed)
	case o.out == "":
		return errors.New("nothing to do: give -out, -examples, -tune or -unseen with a directory")
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}
	tokens := tokenizer.NewBytes()
	weights := llama.NewWeights(configuration(tokens))
	weights.Initialize(o.seed)
	begin := time.Now()
	if err := pretrain(ctx, o, tokens, weights); err != nil {
		return err
	}
	log.Printf("trained in %s", time.Since(begin).Round(time.Second))
	for i, v := range weights.Flat() {
		weights.Flat()[i] = safetensors.RoundBF16(v)
	}
	if err := write(o.out, tokens, weights); err != nil {
		return err
	}
	results, err := measure(ctx, o.out)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(o.out, "README.md"), []byte(card(o, weights, results)), 0o644)
}

// configuration returns the configuration of the base model, which has 0.84 million parameters.
func configuration(t *tokenizer.Tokenizer) llama.Config {
	bos := t.BOS()
	return llama.Config{
		Architectures: []string{"LlamaForCausalLM"}, ModelType: "llama",
		HiddenSize: 128, IntermediateSize: 352, Layers: 4, Heads: 4, KVHeads: 4, HeadDim: 32, VocabSize: t.VocabSize(),
		MaxPositions: 512, NormEps: 1e-5, RopeTheta: 10000, TieWordEmbeddings: true, HiddenAct: "silu",
		InitializerRange: 0.02,
		TorchDType:       "bfloat16", BOS: &bos, EOS: llama.TokenIDs{t.EOS()},
	}
}

// pretrain trains weights on generated examples. An example can repeat only by chance.
func pretrain(ctx context.Context, o options, tokens *tokenizer.Tokenizer, weights *llama.Weights) error {
	loop := train.NewLoop(llama.NewNet(weights, nil, o.workers), o.workers)
	loop.Decay = 0.05
	rng := rand.New(rand.NewPCG(o.seed, 0x6578616d706c65))
	sums, err := arithmetic(tokens)
	if err != nil {
		return err
	}
	const report = 200
	mean, done, begin := 0.0, 0, time.Now()
	for step := 1; step <= o.steps; step++ {
		batch, err := conversations(rng, tokens, o.batch, step*5 <= o.steps)
		if err != nil {
			return err
		}
		got, err := loop.Step(ctx, batch, o.rate*shape(step, o.steps))
		if err != nil {
			return fmt.Errorf("step %d: %w", step, err)
		}
		mean += got.Loss / report
		done += got.Tokens
		if step%report == 0 {
			_, right, err := loop.Loss(ctx, sums)
			if err != nil {
				return err
			}
			log.Printf(
				"step %5d of %d  loss %.4f  accuracy on held-out arithmetic tokens %.3f  %.0f tokens/s at %s", step, o.steps, mean,
				right,
				float64(done)/time.Since(begin).Seconds(), kernel.Level())
			mean = 0
		}
	}
	return nil
}

// shape returns the learning rate of a step, as a fraction of the peak: it rises linearly over the
// first 100 steps, and then falls to 0 like a cosine.
func shape(step, steps int) float64 {
	const warmup = 100
	if step < warmup {
		return float64(step) / warmup
	}
	return (1 + math.Cos(math.Pi*float64(step-warmup)/float64(max(steps-warmup, 1)))) / 2
}

// conversations returns samples that have at least size tokens in total. Most are one prompt and
// its answer; some have a system message or several turns. first selects the task weights of the
// first fifth of the training.
func conversations(rng *rand.Rand, tokens *tokenizer.Tokenizer, size int, first bool) ([]*train.Sample, error) {
	var out []*train.Sample
	for used := 0; used < size; {
		turns := 1
		if rng.IntN(12) == 0 {
			turns = 2 + rng.IntN(4)
		}
		var messages []tokenizer.Message
		if rng.IntN(12) == 0 {
			messages = append(messages, tokenizer.Message{Role: "system", Content: pick(rng, []string{
				"You are a helpful assistant.", "Answer briefly.", "You answer with one word or number.", "Be exact.",
			})})
		}
		for range turns {
			e := draw(rng, false, first)
			messages = append(messages, tokenizer.Message{Role: "user", Content: e.prompt},
				tokenizer.Message{Role: "assistant", Content: e.answer})
		}
		s, err := sample(tokens, messages)
		if err != nil {
			return nil, err
		}
		out = append(out, s)
		used += len(s.Tokens)
	}
	return out, nil
}

func sample(tokens *tokenizer.Tokenizer, messages []tokenizer.Message) (*train.Sample, error) {
	ids, learn, err := tokens.Chat(messages)
	if err != nil {
		return nil, err
	}
	s := &train.Sample{Tokens: make([]int32, len(ids)), Scored: learn}
	for i, id := range ids {
		s.Tokens[i] = int32(id)
	}
	return s, nil
}

// arithmetic returns held-out sums and differences. The model learns these tasks last, so its
// accuracy on them shows whether the training was long enough.
func arithmetic(tokens *tokenizer.Tokenizer) ([]*train.Sample, error) {
	rng := rand.New(rand.NewPCG(0x73756d73, 1))
	var out []*train.Sample
	for _, t := range tasks {
		for i := 0; i < 50 && (t.name == "sum" || t.name == "difference"); i++ {
			e := drawOf(t, rng, true)
			s, err := sample(tokens, []tokenizer.Message{
				{Role: "user", Content: e.prompt}, {Role: "assistant", Content: e.answer},
			})
			if err != nil {
				return nil, err
			}
			out = append(out, s)
		}
	}
	return out, nil
}

// Command arithmetic-loop trains an adapter with reinforcement learning on a training service: it
// samples answers to sums in a wording that the base model was not trained on, rewards the correct
// ones, and takes optimizer steps. Of anneal it imports only the packages tinker and tinker/client.
//
//	TINKER_BASE_URL=https://HANDLE.DOMAIN TINKER_API_KEY=KEY arithmetic-loop
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"strconv"

	"anneal/tinker"
	"anneal/tinker/client"
)

// The tokens of the shipped base model are bytes, and tokens of a conversation.
const (
	tokenBegin     = 256
	tokenAssistant = 258 // after the user's message
	tokenEnd       = 259
)

var (
	baseModel = flag.String("model", "", "name of the base model; that of the job if it is not set")
	connect   = flag.String("connect", "", "address to connect to, such as 127.0.0.1:8080, instead of the host's")
	steps     = flag.Int("steps", 40, "number of steps")
	prompts   = flag.Int("prompts", 32, "number of prompts of a step")
	samples   = flag.Int("samples", 16, "number of samples of a prompt")
	rate      = flag.Float64("rate", 2e-3, "learning rate")
	rank      = flag.Int("rank", 16, "rank of the adapter")
	seed      = flag.Uint64("seed", 1, "seed of the prompts, the adapter and the samples")
)

func main() {
	flag.Parse()
	if err := run(context.Background()); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context) error {
	c, err := client.New(client.Options{URL: os.Getenv("TINKER_BASE_URL"), APIKey: os.Getenv("TINKER_API_KEY"),
		HTTPClient: httpClient()})
	if err != nil {
		return err
	}
	if *baseModel == "" {
		capabilities, err := c.Capabilities(ctx)
		if err != nil {
			return err
		}
		*baseModel = capabilities.SupportedModels[0].ModelName
	}
	session, err := c.OpenSession(ctx, client.SessionOptions{Tags: []string{"arithmetic-loop"}})
	if err != nil {
		return err
	}
	defer session.Close()
	model, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: *baseModel,
		Lora: tinker.LoraConfig{Rank: *rank, Seed: new(int64(*seed))}})
	if err != nil {
		return err
	}
	random := rand.New(rand.NewPCG(*seed, 0))
	for step := range *steps {
		sampler, err := model.Sampler(ctx) // of the weights of this step
		if err != nil {
			return err
		}
		data, reward, err := rollouts(ctx, sampler, random)
		if err != nil {
			return err
		}
		fmt.Printf("step %d reward %.3f\n", step, reward)
		if len(data) == 0 {
			continue // all samples of each prompt have the same reward
		}
		pass, err := model.ForwardBackward(ctx, tinker.ForwardBackwardInput{Data: data, LossFn: "importance_sampling"})
		if err != nil {
			return err
		}
		stepped, err := model.OptimStep(ctx, tinker.AdamParams{LearningRate: rate})
		if err != nil {
			return err
		}
		if _, err := pass.Wait(ctx); err != nil {
			return err
		}
		if _, err := stepped.Wait(ctx); err != nil {
			return err
		}
	}
	saved, err := model.SaveForSampler(ctx, "final", client.SaveOptions{})
	if err != nil {
		return err
	}
	final, err := saved.Wait(ctx)
	if err != nil {
		return err
	}
	fmt.Println("saved", final.Path)
	return nil
}

// httpClient returns a client that connects to -connect, if that is set.
func httpClient() *http.Client {
	if *connect == "" {
		return http.DefaultClient
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.DialContext = func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, *connect)
	}
	return &http.Client{Transport: transport}
}

// rollouts samples answers, and returns a datum for each whose reward differs from the mean of its
// prompt, and the mean reward.
func rollouts(ctx context.Context, sampler *client.Sampler, random *rand.Rand) ([]tinker.Datum, float64, error) {
	var data []tinker.Datum
	total := 0.0
	for range *prompts {
		a, b := random.IntN(100), random.IntN(100)
		prompt := tokens(fmt.Sprintf("%d+%d", a, b))
		out, err := sampler.Sample(ctx, tinker.SampleRequest{Prompt: tinker.NewModelInput(prompt...), NumSamples: samples,
			SamplingParams: tinker.SamplingParams{MaxTokens: new(8), Seed: new(tinker.Seed(random.Uint64()))}})
		if err != nil {
			return nil, 0, err
		}
		rewards, mean := make([]float64, len(out.Sequences)), 0.0
		for i, s := range out.Sequences {
			if text(s.Tokens) == strconv.Itoa(a+b) {
				rewards[i] = 1
			}
			mean += rewards[i] / float64(len(rewards))
		}
		total += mean / float64(*prompts)
		for i, s := range out.Sequences {
			if rewards[i] != mean {
				data = append(data, datum(prompt, s, float32(rewards[i]-mean)))
			}
		}
	}
	return data, total, nil
}

// tokens returns the tokens of a conversation with one message.
func tokens(message string) []int32 {
	out := []int32{tokenBegin}
	for _, b := range []byte(message) {
		out = append(out, int32(b))
	}
	return append(out, tokenAssistant)
}

// text returns the text of an answer, and "" if it is not complete.
func text(tokens []int32) string {
	var out []byte
	for _, token := range tokens {
		if token == tokenEnd {
			return string(out)
		}
		out = append(out, byte(token))
	}
	return ""
}

// datum returns the datum of a sample. Target i follows token i of the input, so the first targets
// are tokens of the prompt. Their advantage is 0, so they are not trained.
func datum(prompt []int32, s tinker.SampledSequence, advantage float32) tinker.Datum {
	all := append(append([]int32{}, prompt...), s.Tokens...)
	n, begin := len(all)-1, len(prompt)-1
	logprobs, advantages := make([]float32, n), make([]float32, n)
	copy(logprobs[begin:], s.Logprobs)
	for i := begin; i < n; i++ {
		advantages[i] = advantage
	}
	return tinker.Datum{ModelInput: tinker.NewModelInput(all[:n]...), LossFnInputs: map[string]tinker.Tensor{
		tinker.TargetTokens: tinker.NewInts(all[1:]),
		tinker.Logprobs:     tinker.NewFloats(logprobs),
		tinker.Advantages:   tinker.NewFloats(advantages),
	}}
}

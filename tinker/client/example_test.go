package client_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"

	"anneal/tinker"
	"anneal/tinker/client"
)

// exampleClient returns a client of a server in this process. A program sets the direct route of
// its job and an API key instead.
func exampleClient() *client.Client {
	c, err := client.New(client.Options{URL: "https://job.example.com", APIKey: "key",
		HTTPClient: &http.Client{Transport: newServer(os.TempDir())}, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		log.Fatal(err)
	}
	return c
}

// A loop submits a pass and a step together, and then waits for both.
func Example() {
	ctx := context.Background()
	session, err := exampleClient().OpenSession(ctx, client.SessionOptions{Tags: []string{"example"}})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	model, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: "base", Lora: tinker.LoraConfig{Rank: 8}})
	if err != nil {
		log.Fatal(err)
	}
	datum := tinker.Datum{ModelInput: tinker.NewModelInput(72, 105), LossFnInputs: map[string]tinker.Tensor{
		tinker.TargetTokens: tinker.NewInts([]int{105, 33}),
		tinker.Weights:      tinker.NewFloats([]float32{0, 1}),
	}}
	for range 2 {
		pass, err := model.ForwardBackward(ctx, tinker.ForwardBackwardInput{Data: []tinker.Datum{datum},
			LossFn: "cross_entropy"})
		if err != nil {
			log.Fatal(err)
		}
		step, err := model.OptimStep(ctx, tinker.AdamParams{LearningRate: new(1e-3)})
		if err != nil {
			log.Fatal(err)
		}
		output, err := pass.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		stepped, err := step.Wait(ctx)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("step", stepped.Metrics["step"], "loss", output.Metrics["loss:sum"])
	}
	// Output:
	// step 1 loss 2
	// step 2 loss 2
}

// Samplers of the current weights and of checkpoints are used in the same way.
func ExampleModel_Sampler() {
	ctx := context.Background()
	session, err := exampleClient().OpenSession(ctx, client.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	model, err := session.CreateModel(ctx, client.ModelConfig{BaseModel: "base", Lora: tinker.LoraConfig{Rank: 8}})
	if err != nil {
		log.Fatal(err)
	}
	sampler, err := model.Sampler(ctx)
	if err != nil {
		log.Fatal(err)
	}
	samples, err := sampler.Sample(ctx, tinker.SampleRequest{Prompt: tinker.NewModelInput(50, 43, 50, 61),
		NumSamples: new(2), SamplingParams: tinker.SamplingParams{MaxTokens: new(4),
			Stop: tinker.Stop{Texts: []string{"\n"}}}})
	if err != nil {
		log.Fatal(err)
	}
	for _, sequence := range samples.Sequences {
		fmt.Println(sequence.Tokens, sequence.StopReason)
	}
	// Output:
	// [50 43 50 61] stop
	// [50 43 50 61] stop
}

// An operation that the server refuses returns an Error at once, one that fails an OperationError
// later.
func ExampleError() {
	ctx := context.Background()
	session, err := exampleClient().OpenSession(ctx, client.SessionOptions{})
	if err != nil {
		log.Fatal(err)
	}
	defer session.Close()
	_, err = session.CreateModel(ctx, client.ModelConfig{BaseModel: "base", Lora: tinker.LoraConfig{Rank: 100}})
	var refused *client.Error
	if errors.As(err, &refused) {
		fmt.Println(refused.StatusCode, refused.Reason)
		fmt.Println(refused.Message)
	}
	// Output:
	// 400 INVALID_FIELDS
	// lora_config.rank: must be 1 to 64, is 100
}

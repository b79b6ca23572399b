package engines

import (
	"context"

	"anneal/domain"
)

// An AddonLoader is a Model that loads LoRA adapters while it serves requests. A request selects an
// adapter with CompletionRequest.Addon. Requests for different adapters are batched together.
type AddonLoader interface {
	Model
	// LoadAddon loads the adapter in the PEFT directory dir under an ID that the caller chooses.
	// The caller may remove dir when LoadAddon returns. Loading an ID again has no effect. If
	// LoadAddon fails or ctx is canceled, the adapter is not loaded. FailedPrecondition and
	// InvalidArgument are permanent errors: the adapter does not fit the model.
	LoadAddon(ctx context.Context, id, dir string) error
	// UnloadAddon unloads the adapter with the ID. The model then rejects new requests for the
	// adapter, and completes running ones. Unloading an ID that is not loaded is not an error.
	UnloadAddon(id string) error
}

// A WeightsLoader is an AddonLoader that can also load other weights of the whole model while it
// serves requests. A request selects weights by their ID in CompletionRequest.Addon; "" selects the
// weights with which the model was loaded.
type WeightsLoader interface {
	AddonLoader
	// LoadWeights loads the weights in dir, a Hugging Face directory, under an ID that the caller
	// chooses; UnloadAddon unloads them. FailedPrecondition is a permanent error: the dimensions or
	// the tokenizer in dir differ from those of the loaded model.
	LoadWeights(ctx context.Context, id, dir string) error
}

// NoReasoning is the reason of the InvalidArgument error for a request whose field Reasoning has an
// Effort or a Budget without effect, because the model does not reason or the request is not a
// chat. The client can remove both fields without changing the completion.
const NoReasoning = "NO_REASONING"

// RequestTooLarge is the reason of the error for a request that exceeds the maximum size of a
// message to a replica.
const RequestTooLarge = "REQUEST_TOO_LARGE"

// AddonNotLoaded is the reason of the error for a request whose adapter this replica has not
// loaded. Another replica may have loaded it.
const AddonNotLoaded = "ADDON_NOT_LOADED"

// ErrAddonNotLoaded returns the error for a request whose adapter has the given ID and is not
// loaded on this replica.
func ErrAddonNotLoaded(id string) error {
	err := domain.Errorf(domain.Unavailable, "addon %s is not loaded on this replica: retry the request", id)
	err.Reason = AddonNotLoaded
	return err
}

package engines

import (
	"context"

	"anneal/domain"
)

// An AddonLoader is a Model that loads LoRA adapters while it serves requests. A
// request selects an adapter with CompletionRequest.Addon; requests for
// different adapters are batched into the same steps.
type AddonLoader interface {
	Model
	// LoadAddon loads the PEFT directory dir of an adapter under an ID that the caller chooses. The
	// caller may remove dir when LoadAddon returns. Loading an ID that is already loaded has no
	// effect. If LoadAddon fails or ctx is canceled, the addon is not loaded. FailedPrecondition and
	// InvalidArgument are permanent errors: the adapter does not fit the model.
	LoadAddon(ctx context.Context, id, dir string) error
	// UnloadAddon unloads the addon with the ID: the model rejects further requests for the addon,
	// and completes running ones. Unloading an ID that is not loaded is not an error.
	UnloadAddon(id string) error
}

// A WeightsLoader is an AddonLoader that also loads complete sets of weights while it serves
// requests. A request selects a set of weights by its ID in CompletionRequest.Addon; an empty
// Addon selects the weights that the model was loaded with.
type WeightsLoader interface {
	AddonLoader
	// LoadWeights loads dir, a Hugging Face directory, under an ID that the caller chooses;
	// UnloadAddon unloads the weights. FailedPrecondition is a permanent error: the dimensions or the
	// tokenizer in dir differ from those of the loaded model.
	LoadWeights(ctx context.Context, id, dir string) error
}

// NoReasoning is the reason of the InvalidArgument error for a request whose Reasoning has an
// Effort or a Budget that cannot have an effect: the model does not reason, or the request is a
// prompt. Removing both fields does not change the completion.
const NoReasoning = "NO_REASONING"

// RequestTooLarge is the reason of the error for a request that exceeds the
// size limit of messages to replicas.
const RequestTooLarge = "REQUEST_TOO_LARGE"

// AddonNotLoaded is the reason of the error for a request whose addon this
// replica does not have; another replica may have it.
const AddonNotLoaded = "ADDON_NOT_LOADED"

// ErrAddonNotLoaded returns the error for a request whose addon id is not loaded on this replica.
func ErrAddonNotLoaded(id string) error {
	err := domain.Errorf(domain.Unavailable, "addon %s is not loaded on this replica: retry the request", id)
	err.Reason = AddonNotLoaded
	return err
}

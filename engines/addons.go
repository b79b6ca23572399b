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
	// LoadAddon loads the adapter's PEFT directory under an ID that the caller
	// chooses. dir may be removed when LoadAddon returns. Loading an ID that is
	// loaded has no effect. FailedPrecondition and InvalidArgument are permanent:
	// the adapter does not fit the model.
	LoadAddon(ctx context.Context, id, dir string) error
	// UnloadAddon rejects further requests for the ID; running ones complete.
	// Unloading an ID that is not loaded is not an error.
	UnloadAddon(id string) error
}

// A WeightsLoader is an AddonLoader that also loads complete sets of weights
// while it serves requests. A request selects them as it selects an addon;
// without an addon it uses the weights that the model was loaded with.
type WeightsLoader interface {
	AddonLoader
	// LoadWeights loads a Hugging Face directory under an ID, as LoadAddon does
	// an adapter; UnloadAddon unloads it. FailedPrecondition is permanent: the
	// directory holds a model with other dimensions or another tokenizer.
	LoadWeights(ctx context.Context, id, dir string) error
}

// RequestTooLarge is the reason of the error for a request that exceeds the
// size limit of messages to replicas.
const RequestTooLarge = "REQUEST_TOO_LARGE"

// AddonNotLoaded is the reason of the error for a request whose addon this
// replica does not have; another replica may have it.
const AddonNotLoaded = "ADDON_NOT_LOADED"

// ErrAddonNotLoaded returns the error for a request whose addon is not loaded.
func ErrAddonNotLoaded(id string) error {
	err := domain.Errorf(domain.Unavailable, "addon %s is not loaded on this replica: retry the request", id)
	err.Reason = AddonNotLoaded
	return err
}

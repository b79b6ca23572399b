package engines

import (
	"context"

	"anneal/domain"
)

// An AddonLoader is a Model that takes LoRA adapters while it answers: each
// request names the one that it wants in CompletionRequest.Addon, and requests
// of different ones share its steps.
type AddonLoader interface {
	Model
	// LoadAddon reads the adapter's PEFT directory and makes it answer under
	// an ID of the caller's; dir is not needed any more when it returns. An ID
	// that is loaded already stays as it is. FailedPrecondition and
	// InvalidArgument say that the adapter does not fit the model, and never
	// will.
	LoadAddon(ctx context.Context, id, dir string) error
	// UnloadAddon takes no more requests for the ID; those that were taken
	// are answered to their end. An ID that is not loaded is no error.
	UnloadAddon(id string) error
}

// A WeightsLoader is an AddonLoader that also takes all parameters anew while it
// answers: requests name them as they name an addon, and those that name none
// are answered with the weights that the model was loaded with.
type WeightsLoader interface {
	AddonLoader
	// LoadWeights reads a Hugging Face directory and makes it answer under an
	// ID, as LoadAddon does an adapter; UnloadAddon unloads it.
	// FailedPrecondition says that it is another model than this, and never
	// will fit: of another shape, or with other tokens.
	LoadWeights(ctx context.Context, id, dir string) error
}

// RequestTooLarge is the reason of the fault of a request that is larger than
// what reaches an engine.
const RequestTooLarge = "REQUEST_TOO_LARGE"

// AddonNotLoaded is the reason of the fault of a request for an addon that the
// model does not have: another replica may.
const AddonNotLoaded = "ADDON_NOT_LOADED"

// ErrAddonNotLoaded answers a request for an addon that the model does not
// have.
func ErrAddonNotLoaded(id string) error {
	f := domain.Errorf(domain.Unavailable, "the addon %s is not loaded here (any more): send the request again", id)
	f.Reason = AddonNotLoaded
	return f
}

package coordinator

import (
	"context"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// rolloutsURL returns the signed URL for the rollouts file of an attempt of a job. Only the agent of
// the attempt writes this file, so an agent whose attempt is over cannot change a newer one.
func (r *reports) rolloutsURL(ctx context.Context, j job, request protocol.SignRequest) (map[string]string, error) {
	size, ok := request.Sizes[engines.RolloutsFile]
	if !ok || len(request.Sizes) != 1 || size < 0 || size > engines.MaxRolloutsBytes {
		return nil, domain.Errorf(domain.InvalidArgument,
			"invalid upload of %d files with rollouts: only %s with at most %d bytes can be stored", len(request.Sizes),
			engines.RolloutsFile, engines.MaxRolloutsBytes)
	}
	key := blobs.RolloutsPrefix(j.Name, j.Event, request.Attempt) + engines.RolloutsFile
	url, err := r.blobs.SignPut(ctx, key, engines.MaxRolloutsBytes, uploadWithin)
	return map[string]string{engines.RolloutsFile: url}, err
}

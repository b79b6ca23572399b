package coordinator

import (
	"context"

	"anneal/blobs"
	"anneal/domain"
	"anneal/engines"
	"anneal/workers/protocol"
)

// rolloutsURL returns a signed URL for uploading the rollouts file of a job's attempt. The URL
// depends on the attempt, so an agent whose attempt is over cannot overwrite the file of a later
// one.
func (r *reports) rolloutsURL(ctx context.Context, j job, request protocol.SignRequest) (map[string]string, error) {
	size, ok := request.Sizes[engines.RolloutsFile]
	if !ok || len(request.Sizes) != 1 || size < 0 || size > engines.MaxRolloutsBytes {
		return nil, domain.Errorf(domain.InvalidArgument,
			"cannot sign an upload of %d files with rollouts: it must be only the file %s with at most %d "+
				"bytes", len(request.Sizes),
			engines.RolloutsFile, engines.MaxRolloutsBytes)
	}
	key := blobs.RolloutsPrefix(j.Name, j.Event, request.Attempt) + engines.RolloutsFile
	url, err := r.blobs.SignPut(ctx, key, engines.MaxRolloutsBytes, uploadWithin)
	return map[string]string{engines.RolloutsFile: url}, err
}

package coordinator

import (
	"context"

	"anneal/blobs"
	"anneal/domain"
	"anneal/workers/protocol"
)

// logURLs returns the signed URLs with which an attempt reads the log of earlier attempts and
// replaces it.
func (r *reports) logURLs(ctx context.Context, j job) (map[string]string, error) {
	key := blobs.TrainerLog(j.Name, j.Event)
	put, err := r.blobs.SignPut(ctx, key, protocol.MaxLog, uploadWithin)
	if err != nil {
		return nil, err
	}
	urls := map[string]string{protocol.LogFile: put}
	switch _, err := r.blobs.Size(ctx, key); {
	case domain.CodeOf(err) == domain.NotFound:
		return urls, nil
	case err != nil:
		return nil, err
	}
	urls[protocol.EarlierLog], err = r.blobs.SignGet(ctx, key, uploadWithin)
	return urls, err
}

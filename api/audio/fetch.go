package audio

import (
	"errors"
	"fmt"
	"io"

	"anneal/domain"
)

// fetch downloads the recording from the URL link, and stores it as if it were uploaded in the
// form.
func (in *formReader) fetch(link string) error {
	field := "url"
	if in.given("file") {
		field = "file"
	}
	invalid := func(err error) error {
		if in.Ctx.Err() != nil {
			return in.Ctx.Err()
		}
		var v domain.Violations
		v.Add(field, "%s", err)
		return v.Err()
	}
	body, length, err := in.service.fetcher.Get(in.Ctx, link)
	if err != nil {
		return invalid(err)
	}
	defer body.Close()
	if length > in.Limit.Bytes {
		return invalid(in.tooLarge())
	}
	size, err := in.service.Uploads.Blobs.Put(in.Ctx, in.Files.Prefix+audioFile, io.LimitReader(body, in.Limit.Bytes+1))
	switch {
	case err != nil && body.Err() != nil:
		return invalid(body.Err())
	case err != nil:
		return err
	case size > in.Limit.Bytes:
		return invalid(in.tooLarge())
	case size == 0:
		return invalid(errors.New("refers to an empty file: give the URL of a file with a recording"))
	}
	in.Files.Sizes[audioFile] = size
	return nil
}

func (in *formReader) tooLarge() error {
	return fmt.Errorf("refers to a file that is larger than the limit of %d bytes: %s", in.Limit.Bytes, splitHint)
}

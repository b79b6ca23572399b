// Package external reads and writes objects in the object stores of accounts (externalUrl). It
// connects with the HTTP client of the caller, and uses only the credentials of the account: never
// those of this process, its environment or its machine.
package external

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"gocloud.dev/blob"
	"gocloud.dev/blob/s3blob"
	"gocloud.dev/gcerrors"

	"anneal/blobs/outbound"
	"anneal/domain"
)

// defaultRegion is the region with which requests are signed when the address has none. Servers
// other than Amazon S3 accept it.
const defaultRegion = "us-east-1"

// A Bucket gives access to a bucket of an S3-compatible object store.
type Bucket struct {
	bucket *blob.Bucket
	at     domain.ObjectURL
}

// An Object is an object of a bucket.
type Object struct {
	Key  string
	Size int64 // size in bytes
}

// Open returns the bucket of an address, without connecting to it. With nil credentials, requests
// are anonymous.
func Open(
	ctx context.Context, at domain.ObjectURL, credentials *domain.StoreCredentials, client *http.Client,
) (*Bucket, error) {
	options := s3.Options{Region: cmp.Or(at.Region, defaultRegion), HTTPClient: client, Retryer: aws.NopRetryer{},
		Credentials:                aws.AnonymousCredentials{},
		RequestChecksumCalculation: aws.RequestChecksumCalculationWhenRequired,
		ResponseChecksumValidation: aws.ResponseChecksumValidationWhenRequired}
	if c := credentials; c != nil {
		options.Credentials = aws.CredentialsProviderFunc(func(context.Context) (aws.Credentials, error) {
			return aws.Credentials{AccessKeyID: c.AccessKeyID.Reveal(), SecretAccessKey: c.SecretAccessKey.Reveal(),
				SessionToken: c.SessionToken.Reveal()}, nil
		})
	}
	if at.Endpoint != "" {
		options.BaseEndpoint, options.UsePathStyle = aws.String(strings.TrimRight(at.Endpoint, "/")), true
	}
	bucket, err := s3blob.OpenBucket(ctx, s3.New(options), at.Bucket,
		&s3blob.Options{RequestChecksumCalculation: options.RequestChecksumCalculation})
	if err != nil {
		return nil, err
	}
	return &Bucket{bucket, at}, nil
}

// Close closes the bucket, which must not be used after that.
func (b *Bucket) Close() error { return b.bucket.Close() }

// Objects returns the object at the address of the bucket. If the address is a directory, it
// returns the objects directly below it, ordered by key and without empty objects. It returns an
// error if there are more than limit objects.
func (b *Bucket) Objects(ctx context.Context, limit int) ([]Object, error) {
	if !b.at.Directory() {
		attributes, err := b.bucket.Attributes(ctx, b.at.Key)
		if err != nil {
			return nil, b.explain(err)
		}
		return []Object{{b.at.Key, attributes.Size}}, nil
	}
	var objects []Object
	for all := b.bucket.List(&blob.ListOptions{Prefix: b.at.Key, Delimiter: "/"}); ; {
		entry, err := all.Next(ctx)
		switch {
		case errors.Is(err, io.EOF):
			return objects, nil
		case err != nil:
			return nil, b.explain(err)
		case entry.IsDir || entry.Size == 0:
			continue
		}
		if objects = append(objects, Object{entry.Key, entry.Size}); len(objects) > limit {
			return nil, domain.Errorf(domain.InvalidArgument, "the directory has more than %d objects: name a directory with "+
				"fewer objects, or one object", limit)
		}
	}
}

// Read calls read with the content of the object under key.
func (b *Bucket) Read(ctx context.Context, key string, read func(io.Reader) error) error {
	content, err := b.bucket.NewReader(ctx, key, nil)
	if err != nil {
		return b.explain(err)
	}
	return errors.Join(read(content), content.Close())
}

// Write stores the content of r as the object under key. It replaces an existing object.
func (b *Bucket) Write(ctx context.Context, key string, r io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	w, err := b.bucket.NewWriter(ctx, key, &blob.WriterOptions{ContentType: "application/jsonl"})
	if err != nil {
		return b.explain(err)
	}
	_, err = io.Copy(w, r)
	if err != nil {
		cancel() // so that Close discards what was written
		return errors.Join(b.explain(err), ignored(w.Close()))
	}
	return b.explain(w.Close())
}

// ignored discards the error of closing a writer whose Write has returned an error.
func ignored(error) error { return nil }

// explain converts an error of the object store into a domain.Error: with the code Unavailable if a
// retry may succeed, and another code if the user has to correct something. Its message contains no
// text from the object store.
func (b *Bucket) explain(err error) error {
	if err == nil {
		return nil
	}
	var fault *domain.Error
	switch code := gcerrors.Code(err); {
	case errors.As(err, &fault), errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return err
	case errors.Is(err, outbound.ErrPrivate):
		return domain.Errorf(domain.PermissionDenied, "the address of the object store is not public, and this server "+
			"connects only to public addresses: use another endpoint, or have the operator start the server with "+
			"--fetch-private")
	case code == gcerrors.NotFound:
		return domain.Errorf(domain.NotFound, "bucket %q has no object %q, or is in another region: correct externalUrl",
			b.at.Bucket, b.at.Key)
	case code == gcerrors.PermissionDenied, isRefused(err):
		return domain.Errorf(domain.PermissionDenied, "the object store refuses access to bucket %q: correct the "+
			"credentials in the secret, or their permissions", b.at.Bucket)
	case code == gcerrors.InvalidArgument:
		return domain.Errorf(domain.InvalidArgument,
			"the object store rejects the request: correct the bucket, key and region in externalUrl")
	}
	return fmt.Errorf("%w: %w", domain.Errorf(domain.Unavailable, "the object store does not respond, or its "+
		"response is not in the S3 protocol (check the endpoint in externalUrl)"), err)
}

// isRefused reports whether the object store has responded with status 401 or 403.
func isRefused(err error) bool {
	var status interface{ HTTPStatusCode() int }
	return errors.As(err, &status) &&
		(status.HTTPStatusCode() == http.StatusUnauthorized || status.HTTPStatusCode() == http.StatusForbidden)
}

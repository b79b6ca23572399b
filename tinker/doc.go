// Package tinker defines the Tinker wire protocol, in which clients with their own training loop
// talk to a training service: requests, responses, their JSON and protobuf encodings, and limits.
//
// Decoders check each request completely, and return one error with all violations: an
// InvalidArgument domain.Error with field, rule and value. Requests of passes, steps and samples
// convert to the types of package engines. Package tinker/client is a client.
//
// The field numbers and names are those of version 0.25.0 of the public Python client.
package tinker

// Content types and encodings of bodies.
const (
	ContentTypeJSON     = "application/json"
	ContentTypeProtobuf = "application/x-protobuf"
	EncodingZstd        = "zstd" // value of the header Content-Encoding
)

// BasePath is the path below which all operations are.
const BasePath = "/api/v1/"

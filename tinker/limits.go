package tinker

// Limits of sizes. Those of samples are in package engines.
const (
	MaxPassBody = 8 << 20 // bytes of the body of a pass, before and after decompression
	MaxBody     = 2 << 20 // bytes of any other body

	MaxDatums          = 1024    // data of a pass
	MaxChunks          = 1024    // chunks of a model input
	MaxTokens          = 1 << 17 // tokens of a model input; a model's context is usually shorter
	MaxTargetsPerToken = 256     // targets of one token
	MaxPassTargets     = 1 << 22 // elements of a tensor; those of a pass together: 4 times as many
	MaxLossInputs      = 8       // inputs of the loss of a datum, and settings of a loss

	MaxSampledTokens = 1 << 20 // samples × max_tokens of one request

	MaxNameBytes     = 255      // name of a checkpoint, model or ID
	MaxPathBytes     = 1024     // tinker:// path
	MaxTags          = 64       // tags of a session
	MaxTagBytes      = 256      // bytes of a tag
	MaxMetadata      = 16 << 10 // bytes of user_metadata
	MaxEvents        = 1000     // telemetry events of a request
	MaxTTLSeconds    = 10 * 365 * 24 * 3600
	MaxPage          = 1000 // rows of a page of a list
	DefaultPage      = 20
	MaxDisplayedText = 64 // bytes of a value that an error quotes
)

// Settings that ClientConfig sends to clients.
const (
	ChunkBytes        = 900_000 // maximum estimated bytes of a pass; clients divide larger ones
	ConcurrentSamples = 2000    // maximum number of sample requests of a client in flight
	RefreshSeconds    = 300     // interval at which clients request DynamicConfig again
)

package server

import (
	"fmt"
	"net"
	"net/url"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"anneal/api"
	"anneal/api/request"
	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/idempotency"
	"anneal/internal/node"
	"anneal/internal/telemetry"
	"anneal/internal/usage"
	"anneal/schedulers"
	"anneal/workers/subscriptions"
	"anneal/workers/tracking"
)

// Flags are the flags of `anneal serve`, which configure a server.
type Flags struct {
	Data, Listen, publicURL  string
	natsURL, natsListen      string
	natsReplicas             int
	acceptLogLoss            bool
	publicLog                bool
	privateMetrics           bool
	witnesses                []string // each witness of the log as URL=KEY
	lameDuck                 time.Duration
	lameDuckFlag             *pflag.Flag
	blobs                    string
	corsOrigins              []string
	worker                   bool
	lostAfter, forgetAfter   time.Duration
	keepDeleted              time.Duration
	placementTimeout         time.Duration
	coldStartTimeout         time.Duration
	maxQueueWait             time.Duration
	zeroFloor, jobDeadline   time.Duration
	maxUpload                int64
	maxModelFile             int64
	maxModelFiles            int
	maxAudio                 int64
	transcriptionTimeout     time.Duration
	fetchPrivate             bool
	fileInterval             time.Duration
	strictInference          bool
	maxConnections           int
	maxConnectionsPerAddress int
	maxBodyMemory            int64
	idempotency              idempotency.Limit
	cluster, directDomain    string
	name                     string
	clientAddresses          bool
	currency                 string
	price, fullPrice         string // prices of training, as decimal amounts in the configured currency
	tracker                  string // address of the experiment tracker as KIND=URL
	backup                   backupFlags
	traces                   telemetry.Flags
	Node                     node.Flags
	tls                      TLSFlags
	oidc                     oidcFlags

	// called for each change of the file store; set only by tests: see blobs.Options
	intercept func(change, key string, do func() error) error
}

// DefaultFlags returns the flags of a command line without flags.
func DefaultFlags() (flags Flags) {
	flags.Add(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	return flags
}

// Add adds the flags to f, in sections of the help.
func (flags *Flags) Add(f *pflag.FlagSet) {
	usage.AddSection(f, "Addresses and data", flags.addAddresses)
	usage.AddSection(f, "Log and NATS", flags.addLog)
	usage.AddSection(f, "TLS", flags.tls.add)
	usage.AddSection(f, "Login with OpenID Connect", flags.oidc.add)
	usage.AddSection(f, "Backups", flags.backup.add)
	usage.AddSection(f, "Traces", flags.traces.Add)
	usage.AddSection(f, "Nodes, jobs and deployments", flags.addScheduling)
	usage.AddSection(f, "Limits of requests", flags.addLimits)
	usage.AddSection(f, "Estimated costs", flags.addPrices)
	flags.Node.Add(f)
	addDeprecated(f)
}

func (flags *Flags) addAddresses(f *pflag.FlagSet) {
	f.StringVar(&flags.Data, "data", "data", "directory for all data of the server")
	f.StringVar(&flags.Listen, "listen", "127.0.0.1:8080", "address for HTTP; port 0 picks a free port")
	f.StringVar(&flags.publicURL, "public-url", "",
		"URL by which clients and workers reach this server (default: http://LISTEN, with --tls-cert https://LISTEN)")
	f.StringVar(&flags.cluster, "cluster", api.DefaultCluster,
		"name of this installation, shown in its deployments")
	f.StringVar(&flags.name, "name", "",
		"ID of this control plane, which its events contain and all readers of events see (default: a random ID, "+
			"stored in DATA/control-plane)")
	f.StringVar(&flags.directDomain, "direct-domain", "",
		"domain in which each deployment with directRouteType INTERNET has a host name; DNS must resolve "+
			"*.DOMAIN to this server (default: no host names)")
	f.DurationVar(&flags.lameDuck, "lame-duck", 0,
		"time at shutdown in which the server still serves requests, but /readyz responds with 503, so that a load balancer "+
			"sends requests to other servers (default: 5s with --nats-url, otherwise 0s)")
	flags.lameDuckFlag = f.Lookup("lame-duck")
	f.StringArrayVar(&flags.corsOrigins, "cors-origin", nil,
		"`ORIGIN` whose web pages may call this server from a browser, such as https://app.example.com, or * for every "+
			"origin; repeat the flag for more (default: none)")
	f.StringVar(&flags.blobs, "blobs", "",
		"bucket for datasets and weights, such as s3://BUCKET?region=R or file:///DIR (default: DATA/blobs)")
}

func (flags *Flags) addLog(f *pflag.FlagSet) {
	f.StringVar(&flags.natsURL, "nats-url", "",
		"NATS cluster that stores the log (default: an embedded server)")
	f.StringVar(&flags.natsListen, "nats-listen", "127.0.0.1:0",
		"address of the embedded NATS server, for workers and subscribers; with port 0 a restart uses the same free "+
			"port again")
	f.IntVar(&flags.natsReplicas, "nats-replicas", 0,
		"replicas of each stream in the NATS cluster (default: 3 for a new stream, unchanged for an existing one)")
	f.BoolVar(&flags.acceptLogLoss, "accept-log-loss", false,
		"start even if the log of the NATS cluster lacks events that this control plane has seen, for example after "+
			"the cluster is restored from a backup; no file is deleted until DATA/sweep.held is removed")
	f.BoolVar(&flags.clientAddresses, "client-addresses", true,
		"record the IP addresses of clients in events and audit records; events are never deleted")
	f.BoolVar(&flags.privateMetrics, "private-metrics", false,
		"require the operator's API key for GET /metrics, as for GET /metrics/detailed")
	f.BoolVar(&flags.publicLog, "public-log", false,
		"serve /log/, the checkpoints and Merkle tree tiles of the event log, to everyone (default: only to the "+
			"operator); they show the number of events, when events are recorded, and salted hashes")
	f.StringArrayVar(&flags.witnesses, "witness", nil,
		"`URL=KEY` of a witness that cosigns the checkpoints of the event log; 'anneal witness' prints its key; repeat the "+
			"flag for more (default: none)")
}

func (flags *Flags) addScheduling(f *pflag.FlagSet) {
	f.BoolVar(&flags.worker, "worker", true, "also run a worker on this machine, which trains and serves models")
	f.DurationVar(&flags.lostAfter, "lost-after", 15*time.Second,
		"time without heartbeats after which a node is lost and its work is moved to other nodes")
	f.DurationVar(&flags.forgetAfter, "forget-after", schedulers.ForgetAfter,
		"time after which a lost node that registered without enrolling, as in earlier versions, is removed; "+
			"other lost nodes remain until they are deleted")
	f.DurationVar(&flags.placementTimeout, "placement-timeout", 10*time.Minute,
		"time after which a deployment that cannot be placed fails")
	f.DurationVar(&flags.jobDeadline, "job-deadline", 0,
		"age at which an unfinished job expires (default: never)")
	f.StringVar(&flags.tracker, "tracker", tracking.DefaultAddress,
		"experiment tracker for jobs with trackerConfig: wandb=`URL` or mlflow=URL; this URL may have a private "+
			"address")
	f.DurationVar(&flags.coldStartTimeout, "cold-start-timeout", request.DefaultLimits.Wake,
		"time for which a request waits until a replica of its deployment is ready and reachable, for example when the "+
			"deployment is scaled to zero or its node is lost")
	f.DurationVar(&flags.maxQueueWait, "max-queue-wait", request.DefaultLimits.QueueWait,
		"predicted time in the admission queue of a deployment above which a request is refused with 429, Retry-After and "+
			"a ticket")
	f.DurationVar(&flags.zeroFloor, "scale-to-zero-floor", domain.MinScaleToZeroWindow,
		"minimum scaleToZeroWindow of a deployment")
	f.DurationVar(&flags.keepDeleted, "keep-deleted", 30*24*time.Hour,
		"time for which a deleted deployment can be restored")
}

func (flags *Flags) addLimits(f *pflag.FlagSet) {
	f.IntVar(&flags.maxConnections, "max-connections", 0,
		"maximum number of HTTP connections (default: a third of the file descriptors that are not reserved for the log, at "+
			"most 4096)")
	f.IntVar(&flags.maxConnectionsPerAddress, "max-connections-per-address", 0,
		"maximum number of HTTP connections from one address; set a higher number behind a proxy, since all its "+
			"connections have the proxy's address (default: a quarter of --max-connections)")
	f.Int64Var(&flags.maxBodyMemory, "max-body-memory", request.DefaultLimits.Bodies,
		"maximum memory for all JSON bodies that are being read and decoded, in bytes; each account may use "+
			"a quarter of this memory")
	f.Int64Var(&flags.maxUpload, "max-upload", request.DefaultLimits.Upload,
		"maximum size of one uploaded dataset file, in bytes")
	f.Int64Var(&flags.maxModelFile, "max-model-file", request.DefaultLimits.ModelFile,
		"maximum size of one uploaded file of a model, in bytes")
	f.IntVar(&flags.maxModelFiles, "max-model-files", request.DefaultLimits.ModelFiles,
		"maximum number of files of one uploaded model")
	f.Int64Var(&flags.maxAudio, "max-audio", request.DefaultLimits.Audio, "maximum size of one recording, in bytes")
	f.DurationVar(&flags.transcriptionTimeout, "transcription-timeout", request.DefaultLimits.Transcription,
		"maximum time to transcribe one recording")
	f.DurationVar(&flags.fileInterval, "subscription-file-interval", subscriptions.DefaultPolicy.FileInterval,
		"maximum time from an event until the file of a subscription that contains it is written")
	f.BoolVar(&flags.fetchPrivate, "fetch-private", false,
		"also connect to URLs of this machine and of private networks that a caller names: to fetch recordings and "+
			"images, to upload metrics files, to import and export datasets, and to deliver events to subscriptions")
	f.BoolVar(&flags.strictInference, "strict-inference", false, "reject unknown parameters of inference requests, and "+
		"reasoning settings of models that do not reason, instead of ignoring them with a warning")
	f.IntVar(&flags.idempotency.Count, "max-idempotency-keys", idempotency.DefaultLimit.Count,
		"maximum number of idempotency keys stored for one account; each is stored for 24 hours")
	f.Int64Var(&flags.idempotency.Bytes, "max-idempotency-bytes", idempotency.DefaultLimit.Bytes,
		"maximum size of the responses stored for one account's idempotency keys, in bytes; at this size new keys are "+
			"rejected")
}

func (flags *Flags) addPrices(f *pflag.FlagSet) {
	f.StringVar(&flags.currency, "currency", domain.DefaultCurrency, "currency of estimated costs, as ISO 4217 writes it")
	f.StringVar(&flags.price, "training-price", "0",
		"price per million training tokens of a LoRA adapter, for estimated costs")
	f.StringVar(&flags.fullPrice, "full-training-price", "",
		"price per million training tokens of jobs that train all parameters (default: --training-price)")
}

// deprecatedFlags are the current names of renamed flags, by former name. CHANGELOG.md announces a
// rename; the release after it removes the former name.
var deprecatedFlags = map[string]string{
	"hold": "cold-start-timeout", "max-listening": "transcription-timeout", "max-kept-answers": "max-idempotency-keys",
	"max-kept-answer-bytes": "max-idempotency-bytes",
}

// addDeprecated adds the former names of flags, which print a warning and set the same values.
func addDeprecated(f *pflag.FlagSet) {
	for old, name := range deprecatedFlags {
		f.Var(f.Lookup(name).Value, old, "former name of --"+name)
		if err := f.MarkDeprecated(old, "use --"+name); err != nil {
			panic(err) // cannot happen: the loop in Add has added the flag
		}
	}
}

// defaultLameDuck is the default of --lame-duck with --nats-url: other control planes may serve the
// installation meanwhile.
const defaultLameDuck = 5 * time.Second

// lameDuckTime returns the value of --lame-duck or, if the flag is not given, its default.
func (f Flags) lameDuckTime() time.Duration {
	if f.natsURL == "" || f.lameDuckFlag != nil && f.lameDuckFlag.Changed {
		return f.lameDuck
	}
	return defaultLameDuck
}

// minBodyMemory is the minimum of --max-body-memory. Each account may use a quarter of it, which
// suffices for a text of 4 MiB.
const minBodyMemory = 96 << 20

// Check returns an error with all violations of the flags; nil if they are valid.
func (f Flags) Check() error {
	var wrong []string
	require := func(holds bool, format string, args ...any) {
		if !holds {
			wrong = append(wrong, fmt.Sprintf(format, args...))
		}
	}
	for _, at := range []struct{ flag, address string }{{"--listen", f.Listen}, {"--nats-listen", f.natsListen}} {
		_, _, err := net.SplitHostPort(at.address)
		require(err == nil, "%s %q must be HOST:PORT", at.flag, at.address)
	}
	require(f.publicURL == "" || strings.HasPrefix(f.publicURL, "http://") || strings.HasPrefix(f.publicURL, "https://"),
		"--public-url %q must begin with http:// or https://", f.publicURL)
	for _, limit := range []struct {
		flag  string
		value any
		holds bool
	}{{"--lost-after", f.lostAfter, f.lostAfter > 0}, {"--forget-after", f.forgetAfter, f.forgetAfter > 0},
		{"--keep-deleted", f.keepDeleted, f.keepDeleted > 0},
		{"--placement-timeout", f.placementTimeout, f.placementTimeout > 0},
		{"--cold-start-timeout", f.coldStartTimeout, f.coldStartTimeout > 0},
		{"--max-queue-wait", f.maxQueueWait, f.maxQueueWait > 0},
		{"--scale-to-zero-floor", f.zeroFloor, f.zeroFloor > 0},
		{"--max-upload", f.maxUpload, f.maxUpload > 0}, {"--max-model-file", f.maxModelFile, f.maxModelFile > 0},
		{"--max-model-files", f.maxModelFiles, f.maxModelFiles > 0}, {"--max-audio", f.maxAudio, f.maxAudio > 0},
		{"--max-idempotency-keys", f.idempotency.Count, f.idempotency.Count > 0},
		{"--max-idempotency-bytes", f.idempotency.Bytes, f.idempotency.Bytes > 0}} {
		require(limit.holds, "%s %v must be positive", limit.flag, limit.value)
	}
	require(f.transcriptionTimeout > 0 && f.transcriptionTimeout <= blobs.TransientTime/2,
		"--transcription-timeout %s must be more than 0 and at most %s, because recordings are deleted after %s",
		f.transcriptionTimeout, blobs.TransientTime/2, blobs.TransientTime)
	require(f.natsReplicas == 0 || f.natsURL != "",
		"--nats-replicas requires --nats-url, the cluster that stores the log")
	require(!f.acceptLogLoss || f.natsURL != "",
		"--accept-log-loss requires --nats-url: for the embedded server use 'anneal log repair --accept-loss'")
	require(f.maxBodyMemory >= minBodyMemory,
		"--max-body-memory %d must be at least %d, so that a quarter of it, the share of an account, suffices for a "+
			"large body",
		f.maxBodyMemory, minBodyMemory)
	require(f.maxConnections >= 0, "--max-connections %d must not be negative", f.maxConnections)
	require(f.maxConnectionsPerAddress >= 0, "--max-connections-per-address %d must not be negative",
		f.maxConnectionsPerAddress)
	require(f.jobDeadline >= 0, "--job-deadline %s must not be negative", f.jobDeadline)
	require(f.lameDuck >= 0, "--lame-duck %s must not be negative", f.lameDuck)
	for _, origin := range f.corsOrigins {
		err := api.CheckOrigin(origin)
		require(err == nil, "--cors-origin %q %v", origin, err)
	}
	require(domain.ValidID(f.cluster), "--cluster %q %s", f.cluster, domain.IDRule)
	require(f.name == "" || domain.ValidID(f.name), "--name %q %s", f.name, domain.IDRule)
	_, err := tracking.ParseService(f.tracker)
	require(err == nil, "--tracker %q %v", f.tracker, err)
	_, unwitnessed := f.parseWitnesses()
	require(unwitnessed == nil, "--witness %v", unwitnessed)
	_, unpriced := f.prices()
	for _, err := range []error{f.checkDirectDomain(), unpriced, f.backup.check(), f.oidc.check(), f.traces.Check(),
		f.Node.Check()} {
		require(err == nil, "%v", err)
	}
	switch len(wrong) {
	case 0:
		return nil
	case 1:
		return usage.Errorf("%s", wrong[0])
	}
	return usage.Errorf("%d flags are invalid:\n  %s", len(wrong), strings.Join(wrong, "\n  "))
}

// maxDirectDomain is the maximum length of --direct-domain, so that a host name of 253 characters
// has space for the label of a deployment.
const maxDirectDomain = 200

var dnsName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// checkDirectDomain returns an error if --direct-domain is invalid. The domain must not contain the
// server's own host name, because requests to that name would be treated as requests to a
// deployment.
func (f Flags) checkDirectDomain() error {
	if f.directDomain == "" {
		return nil
	}
	if len(f.directDomain) > maxDirectDomain || !dnsName.MatchString(f.directDomain) {
		return usage.Errorf("--direct-domain %q must be a domain of at most %d characters, in lower case and without a "+
			"scheme or port, such as direct.example.com", f.directDomain, maxDirectDomain)
	}
	if public, err := url.Parse(f.publicURL); err == nil && strings.HasSuffix(strings.ToLower(public.Hostname()),
		"."+f.directDomain) {
		return usage.Errorf("--direct-domain %s contains the host of --public-url, %s, whose requests would be taken for "+
			"those of a deployment: choose a domain without other hosts", f.directDomain, public.Hostname())
	}
	return nil
}

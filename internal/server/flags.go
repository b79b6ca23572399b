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
	"anneal/blobs"
	"anneal/domain"
	"anneal/eventlog/idempotency"
	"anneal/internal/node"
	"anneal/internal/usage"
	"anneal/schedulers"
)

// Flags are what a server can be told.
type Flags struct {
	Data, Listen, publicURL   string
	natsURL, natsListen       string
	natsReplicas              int
	acceptLogLoss             bool
	blobs                     string
	worker                    bool
	lostAfter, forgetAfter    time.Duration
	keepDeleted               time.Duration
	placementTimeout, holdFor time.Duration
	zeroFloor, jobDeadline    time.Duration
	maxUpload                 int64
	maxModelFile              int64
	maxModelFiles             int
	maxAudio                  int64
	maxListening              time.Duration
	fetchPrivate              bool
	maxConnections            int
	maxConnectionsPerAddress  int
	maxBodyMemory             int64
	answers                   idempotency.Limit
	cluster, directDomain     string
	currency                  string
	price, fullPrice          string // decimal amounts
	Node                      node.Flags
	tls                       TLSFlags
}

// DefaultFlags are the flags of a command line that names none.
func DefaultFlags() (flags Flags) {
	flags.Add(pflag.NewFlagSet("serve", pflag.ContinueOnError))
	return flags
}

// Add adds the flags to a command.
func (flags *Flags) Add(f *pflag.FlagSet) {
	f.StringVar(&flags.Data, "data", "data", "folder for everything the server keeps")
	f.StringVar(&flags.Listen, "listen", "127.0.0.1:8080", "address for HTTP; port 0 picks a free one")
	f.StringVar(&flags.publicURL, "public-url", "", "how clients and workers reach this server (default: http://LISTEN, with --tls-cert https://LISTEN)")
	f.StringVar(&flags.natsURL, "nats-url", "", "an existing NATS cluster to keep the log in (default: an embedded server)")
	f.StringVar(&flags.natsListen, "nats-listen", "127.0.0.1:0", "address of the embedded NATS server, for workers and subscribers; a free port is kept from start to start")
	f.IntVar(&flags.natsReplicas, "nats-replicas", 0, "servers of the cluster that keep each stream (default: 3, or what is there)")
	f.BoolVar(&flags.acceptLogLoss, "accept-log-loss", false, "start although the cluster's log lacks events that this control plane has seen, as after a restore; nothing is deleted until DATA/sweep.held is removed")
	f.StringVar(&flags.blobs, "blobs", "", "bucket for datasets and weights, such as s3://BUCKET?region=R (default: DATA/blobs)")
	f.BoolVar(&flags.worker, "worker", true, "also train and serve on this machine")
	f.DurationVar(&flags.lostAfter, "lost-after", 15*time.Second, "when a silent node is lost and its work goes elsewhere")
	f.DurationVar(&flags.forgetAfter, "forget-after", schedulers.ForgetAfter, "when a lost node that never enrolled is forgotten; others stay until they are deleted")
	f.DurationVar(&flags.keepDeleted, "keep-deleted", 30*24*time.Hour, "how long a deleted deployment can be brought back")
	f.DurationVar(&flags.placementTimeout, "placement-timeout", 10*time.Minute, "when a deployment that finds no place fails")
	f.DurationVar(&flags.holdFor, "hold", api.DefaultLimits.Wake, "how long a request waits for a deployment to wake up")
	f.DurationVar(&flags.zeroFloor, "scale-to-zero-floor", domain.MinScaleToZeroWindow, "shortest scaleToZeroWindow that a deployment may have")
	f.DurationVar(&flags.jobDeadline, "job-deadline", 0, "when a job that is not done expires, counted from its creation (default: never)")
	f.Int64Var(&flags.maxUpload, "max-upload", api.DefaultLimits.Upload, "most bytes of one uploaded dataset file")
	f.Int64Var(&flags.maxModelFile, "max-model-file", api.DefaultLimits.ModelFile, "most bytes of one uploaded file of a model")
	f.IntVar(&flags.maxModelFiles, "max-model-files", api.DefaultLimits.ModelFiles, "most files of one uploaded model")
	f.Int64Var(&flags.maxAudio, "max-audio", api.DefaultLimits.Audio, "most bytes of one recording")
	f.DurationVar(&flags.maxListening, "max-listening", api.DefaultLimits.Transcription, "how long transcribing one recording may take")
	f.BoolVar(&flags.fetchPrivate, "fetch-private", false, "also fetch recordings from URLs of this machine and of private networks, for whoever has a key")
	f.IntVar(&flags.maxConnections, "max-connections", 0, "most HTTP connections at once (default: a third of the file descriptors that are not reserved for the log, at most 4096)")
	f.IntVar(&flags.maxConnectionsPerAddress, "max-connections-per-address", 0, "most of them from one address; raise it behind a proxy, whose clients all have its address (default: a quarter of --max-connections)")
	f.Int64Var(&flags.maxBodyMemory, "max-body-memory", api.DefaultLimits.Bodies, "most bytes of memory for JSON bodies that are read and decoded at once, a quarter of it for each account")
	f.IntVar(&flags.answers.Count, "max-kept-answers", idempotency.DefaultLimit.Count, "most answers kept for the idempotency keys of one account, each for 24 hours")
	f.Int64Var(&flags.answers.Bytes, "max-kept-answer-bytes", idempotency.DefaultLimit.Bytes, "most bytes of them, after which no further key is taken")
	f.StringVar(&flags.cluster, "cluster", api.DefaultCluster, "name of this installation, which deployments made here show")
	f.StringVar(&flags.directDomain, "direct-domain", "", "domain below which deployments with directRouteType INTERNET have a host name each; its names (*.DOMAIN) must lead here (default: none have)")
	f.StringVar(&flags.currency, "currency", domain.DefaultCurrency, "currency of estimated costs, as ISO 4217 writes it")
	f.StringVar(&flags.price, "training-price", "0", "what a million tokens cost that an adapter learns from, for estimates")
	f.StringVar(&flags.fullPrice, "full-training-price", "", "the same for jobs that train all parameters (default: --training-price)")
	flags.tls.add(f)
	flags.Node.Add(f)
}

// minBodyMemory leaves each account the memory that a text of 4 MiB takes.
const minBodyMemory = 96 << 20

// check refuses flags that cannot be meant, all of them at once.
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
	require(f.publicURL == "" || strings.HasPrefix(f.publicURL, "http://") || strings.HasPrefix(f.publicURL, "https://"), "--public-url %q must begin with http:// or https://", f.publicURL)
	for _, limit := range []struct {
		flag  string
		value int64
	}{{"--lost-after", int64(f.lostAfter)}, {"--forget-after", int64(f.forgetAfter)}, {"--keep-deleted", int64(f.keepDeleted)}, {"--placement-timeout", int64(f.placementTimeout)},
		{"--hold", int64(f.holdFor)}, {"--scale-to-zero-floor", int64(f.zeroFloor)}, {"--max-upload", f.maxUpload}, {"--max-model-file", f.maxModelFile},
		{"--max-model-files", int64(f.maxModelFiles)}, {"--max-audio", f.maxAudio}, {"--max-kept-answers", int64(f.answers.Count)}, {"--max-kept-answer-bytes", f.answers.Bytes}} {
		require(limit.value > 0, "%s must be positive", limit.flag)
	}
	require(f.maxListening > 0 && f.maxListening <= blobs.TransientTime/2, "--max-listening must be more than 0 and at most %s, since a recording is kept no longer than twice that", blobs.TransientTime/2)
	require(f.natsReplicas == 0 || f.natsURL != "", "--nats-replicas counts the servers of a cluster: name it by --nats-url, or leave it out")
	require(!f.acceptLogLoss || f.natsURL != "", "--accept-log-loss is for a log in a cluster: use 'anneal log repair --accept-loss' for the server's own")
	require(f.maxBodyMemory >= minBodyMemory, "--max-body-memory must be at least %d, or an account's share could not hold one large body", minBodyMemory)
	require(f.maxConnections >= 0 && f.maxConnectionsPerAddress >= 0, "--max-connections and --max-connections-per-address must not be negative")
	require(f.jobDeadline >= 0, "--job-deadline must not be negative")
	require(domain.ValidID(f.cluster), "--cluster %q %s", f.cluster, domain.IDRule)
	_, unpriced := f.prices()
	for _, err := range []error{f.checkDirectDomain(), unpriced, f.Node.Check()} {
		require(err == nil, "%v", err)
	}
	switch len(wrong) {
	case 0:
		return nil
	case 1:
		return usage.Errorf("%s", wrong[0])
	}
	return usage.Errorf("%d flags are wrong:\n  %s", len(wrong), strings.Join(wrong, "\n  "))
}

// maxDirectDomain leaves room for a deployment's label in a host name.
const maxDirectDomain = 200

var dnsName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*$`)

// checkDirectDomain refuses a domain that is none, or that holds the server's
// own address, which would be taken for a deployment's.
func (f Flags) checkDirectDomain() error {
	if f.directDomain == "" {
		return nil
	}
	if len(f.directDomain) > maxDirectDomain || !dnsName.MatchString(f.directDomain) {
		return usage.Errorf("--direct-domain %q must be a domain of at most %d characters, in lower case and without a scheme or port, such as direct.example.com", f.directDomain, maxDirectDomain)
	}
	if public, err := url.Parse(f.publicURL); err == nil && strings.HasSuffix(strings.ToLower(public.Hostname()), "."+f.directDomain) {
		return usage.Errorf("--direct-domain %s holds the host of --public-url, %s, which must stay this server's: choose a domain of which no other host is part", f.directDomain, public.Hostname())
	}
	return nil
}

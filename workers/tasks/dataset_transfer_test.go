package tasks_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"anneal/blobs/external/s3test"
	"anneal/blobs/outbound"
	"anneal/domain"
	"anneal/eventlog"
	"anneal/eventlog/secrets"
	"anneal/workers/tasks"
)

// A transferBench is a harness with an object store and a secret with its credentials.
type transferBench struct {
	*harness
	store *s3test.Server
	vault *secrets.Vault
	tasks.Transferrer
}

const storeSecret = "accounts/acme/secrets/store"

func newTransferBench(t *testing.T) *transferBench {
	b := &transferBench{harness: newHarness(t), store: s3test.Start(t), vault: secrets.NewMemoryVault()}
	b.Transferrer = b.transferrer(b.log)
	b.Open = secrets.ObservedVault{Vault: b.vault}.Open
	b.secret(b.store.Credentials())
	return b
}

// publicStore returns an object store with an object a.jsonl that everyone may read.
func publicStore(b *harness) *s3test.Server {
	store := s3test.Start(b.TB)
	store.Public = true
	store.Put("a.jsonl", numbered(1, 4))
	return store
}

// transferrer returns a Transferrer that records on a log and may connect to this machine.
func (b *harness) transferrer(log eventlog.Log) tasks.Transferrer {
	return tasks.Transferrer{Log: log, World: b.world, Blobs: b.blobs, Now: time.Now,
		Client: outbound.Client(true, time.Minute), MaxFile: 1000}
}

// secret replaces the secret with the credentials.
func (b *transferBench) secret(value string) {
	b.Helper()
	sealed, err := b.vault.Seal(b.Context(), storeSecret, []byte(value))
	require.NoError(b, err)
	if state, _ := b.world.Row(storeSecret); state == nil || !state.(domain.Secret).Exists() {
		do(b.harness, domain.Secrets, "store", domain.CreateSecret{KeyName: "STORE", Value: sealed})
		return
	}
	do(b.harness, domain.Secrets, "store", domain.UpdateSecret{KeyName: "STORE", Value: &sealed})
}

func (b *transferBench) importFrom(id, key string) domain.Dataset {
	b.Helper()
	e := b.do(id, domain.CreateDataset{DatasetSpec: domain.DatasetSpec{ExternalURL: b.store.Address(key),
		CredentialsSecret: storeSecret}})
	require.NoError(b, tasks.Importer{Transferrer: b.Transferrer}.Import(b.Context(), e))
	return b.state(id)
}

func (b *transferBench) validate(id string) domain.Dataset {
	b.Helper()
	d := b.state(id)
	validator := tasks.Validator{Log: b.log, World: b.world, Blobs: b.blobs, Now: time.Now}
	require.NoError(b, validator.Validate(b.Context(), b.last(id, "dataset.uploaded.v1")))
	require.Equal(b, 1, d.Upload, d.Status.Message)
	return b.state(id)
}

// last returns the newest event of a dataset with a stored name.
func (b *transferBench) last(id, stored string) (found eventlog.Event) {
	b.Helper()
	for e, err := range b.log.Read(b.Context(), named(domain.Datasets, id).Subject(), 0) {
		require.NoError(b, err)
		if e.Type == stored {
			found = e
		}
	}
	require.NotEmpty(b, found.ID)
	return found
}

func TestRowsAreImportedFromAnObjectStore(t *testing.T) {
	b := newTransferBench(t)
	b.store.Put("chats/one.jsonl", numbered(1, 4))
	b.store.Put("chats/two words+.jsonl", numbered(5, 5))
	b.store.Put("chats/empty", "")
	b.store.Put("chats/older/three.jsonl", numbered(6, 9))

	one := b.importFrom("one", "chats/one.jsonl")
	require.Equal(t, "the upload is being validated", one.Status.Message)
	one = b.validate("one")
	require.Equal(t, domain.DatasetReady, one.State, one.Status.Message)
	require.Equal(t, numbered(1, 4), b.content(one))

	all := b.importFrom("all", "chats/")
	require.Contains(t, all.Status.Message, `object "two words+.jsonl"`)
	require.Equal(t, "INVALID_ARGUMENT", all.Status.Code)
	require.Empty(t, b.left("datasets/acme/"+b.world.Lookup(named(domain.Datasets, "all")).CreateEvent+"/"))

	b.store.Put("more/one.jsonl", numbered(1, 4))
	b.store.Put("more/two.jsonl", numbered(5, 9))
	more := b.importFrom("more", "more/")
	require.Len(t, more.Files.Sizes, 2)
	require.EqualValues(t, 9, b.validate("more").ExampleCount)
}

func TestImportsThatCannotSucceed(t *testing.T) {
	b := newTransferBench(t)
	b.store.Put("rows.jsonl", numbered(1, 4))
	b.store.Put("large.jsonl", strings.Repeat("x", 1001))
	require.Contains(t, b.importFrom("missing", "other.jsonl").Status.Message, `bucket "rows" has no object "other.jsonl"`)
	require.Contains(t, b.importFrom("nothing", "none/").Status.Message,
		"the directory that externalUrl names has no objects")
	require.Contains(t, b.importFrom("large", "large.jsonl").Status.Message, "more than 1000 bytes")

	b.secret(`{"access_key_id": "AKTEST", "secret_access_key": "wrong"}`)
	refused := b.importFrom("refused", "rows.jsonl")
	require.Equal(t, "PERMISSION_DENIED", refused.Status.Code)
	require.Contains(t, refused.Status.Message, "refuses access")
	require.NotContains(t, refused.Status.Message, "wrong")
	b.secret("hunter2")
	require.Contains(t, b.importFrom("text", "rows.jsonl").Status.Message,
		storeSecret+" must be JSON like")
	require.NotContains(t, b.state("text").Status.Message, "hunter2")

	b.secret(b.store.Credentials())
	e := b.do("refused", domain.RequestImport{TransferSpec: domain.TransferSpec{
		ExternalURL: b.store.Address("rows.jsonl"), CredentialsSecret: storeSecret}})
	require.NoError(t, tasks.Importer{Transferrer: b.Transferrer}.Import(t.Context(), e))
	require.Equal(t, domain.DatasetReady, b.validate("refused").State)

	do(b.harness, domain.Quotas, domain.QuotaStorageBytes, domain.SetQuota{MaxValue: 10})
	require.Contains(t, b.importFrom("full", "rows.jsonl").Status.Message, "of the 10 bytes of quota storage-bytes")
}

// TestTransfersReachPublicAddressesOnly checks that a transfer does not connect to an address of
// this machine that an account names.
func TestTransfersReachPublicAddressesOnly(t *testing.T) {
	b := newTransferBench(t)
	b.Client = outbound.Client(false, time.Minute)
	b.store.Put("rows.jsonl", numbered(1, 4))
	d := b.importFrom("d", "rows.jsonl")
	require.Equal(t, "PERMISSION_DENIED", d.Status.Code, d.Status.Message)
	require.Contains(t, d.Status.Message, "--fetch-private")
	b.source("source", numbered(1, 4))
	e := b.do("source", domain.RequestExport{TransferSpec: domain.TransferSpec{ExternalURL: b.store.Address("out/"),
		CredentialsSecret: storeSecret}})
	require.NoError(t, tasks.Exporter{Transferrer: b.Transferrer}.Export(t.Context(), e))
	require.Contains(t, b.state("source").Export.Status.Message, "--fetch-private")
	require.Zero(t, b.store.Requests())
}

// TestImportsWithoutASecretAreAnonymous checks that an import without a secret does not use the
// credentials in the environment of this process.
func TestImportsWithoutASecretAreAnonymous(t *testing.T) {
	t.Setenv("AWS_ACCESS_KEY_ID", "AKTEST")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
	b := newTransferBench(t)
	b.store.Put("rows.jsonl", numbered(1, 4))
	anonymous := domain.DatasetSpec{ExternalURL: b.store.Address("rows.jsonl")}
	importer := tasks.Importer{Transferrer: b.Transferrer}
	require.NoError(t, importer.Import(t.Context(), b.do("closed", domain.CreateDataset{DatasetSpec: anonymous})))
	require.Equal(t, "PERMISSION_DENIED", b.state("closed").Status.Code)
	b.store.Public = true
	require.NoError(t, importer.Import(t.Context(), b.do("open", domain.CreateDataset{DatasetSpec: anonymous})))
	require.Equal(t, domain.DatasetReady, b.validate("open").State)
}

// TestAnUploadReplacesARunningImport checks that the files of an import that was replaced are
// removed.
func TestAnUploadReplacesARunningImport(t *testing.T) {
	b := newTransferBench(t)
	b.store.Put("rows.jsonl", numbered(1, 4))
	e := b.do("d", domain.CreateDataset{DatasetSpec: domain.DatasetSpec{ExternalURL: b.store.Address("rows.jsonl"),
		CredentialsSecret: storeSecret}})
	uploads := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.Method == http.MethodGet {
			b.do("d", domain.UploadDataset{Upload: 1, Files: domain.Files{Prefix: "datasets/acme/other/1-x/",
				Sizes: map[string]int64{"rows.jsonl": 1}}})
		}
		return http.DefaultTransport.RoundTrip(r)
	})}
	importer := tasks.Importer{Transferrer: b.Transferrer}
	importer.Client = uploads
	require.NoError(t, importer.Import(t.Context(), e))
	require.Equal(t, "datasets/acme/other/1-x/", b.state("d").Files.Prefix)
	require.Empty(t, b.left("datasets/acme/"+b.world.Lookup(named(domain.Datasets, "d")).CreateEvent+"/"))
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestRowsAreExportedToAnObjectStore(t *testing.T) {
	b := newTransferBench(t)
	large := ""
	for i := range 3 { // larger than one part of a multipart upload
		large += fmt.Sprintf(`{"prompt":"p%d","completion":"%s"}`+"\n", i, strings.Repeat("y", 1<<20))
	}
	b.source("source", numbered(1, 4), large)
	exporter := tasks.Exporter{Transferrer: b.Transferrer}
	to := domain.TransferSpec{ExternalURL: b.store.Address("out/"), CredentialsSecret: storeSecret}
	require.NoError(t, exporter.Export(t.Context(), b.do("source", domain.RequestExport{TransferSpec: to})))
	d := b.state("source")
	require.Equal(t, domain.TransferCompleted, d.Export.State, d.Export.Status.Message)
	require.Equal(t, map[string]string{"out/part-0.jsonl": numbered(1, 4), "out/part-1.jsonl": large}, b.store.Objects())

	b.secret(`{"access_key_id": "AKTEST", "secret_access_key": "wrong"}`)
	require.NoError(t, exporter.Export(t.Context(), b.do("source", domain.RequestExport{TransferSpec: to})))
	require.Equal(t, domain.TransferFailed, b.state("source").Export.State)
	require.Contains(t, b.state("source").Export.Status.Message, "refuses access")
	require.Equal(t, domain.DatasetReady, b.state("source").State)
}

package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"

	"anneal/disk"
	"anneal/eventlog"
	"anneal/eventlog/integrity"
	"anneal/internal/certs"
	"anneal/internal/datadir"
	"anneal/projections"
)

// A Verification compares the world that is folded from the log with the world that the server
// serves.
type Verification struct {
	// Against is the source of Served: "running server" or "snapshot"; "" if there is neither.
	Against string             `json:"against"`
	Equal   bool               `json:"equal"`
	Seconds float64            `json:"seconds"`
	Folded  projections.Digest `json:"folded"`
	Served  projections.Digest `json:"served"`

	Log *integrity.FileReport `json:"log,omitempty"` // report on the files of the embedded NATS server
}

// Verify verifies the files of an embedded log. If they are undamaged, it folds the log and
// compares the result with the state that the server serves. It reads the log and the state of a
// running server through the mirror and the API, and those of a stopped server from its files and
// its newest snapshot.
func Verify(ctx context.Context, dir datadir.Dir) (Verification, error) {
	if err := dir.CheckExists(); err != nil {
		return Verification{}, err
	}
	release, running := disk.LockDir(string(dir))
	if running == nil {
		defer release()
	}
	var files *integrity.FileReport
	if hasLog(dir) {
		holds, err := projections.Newest(dir.Path("snapshots"))
		if err != nil {
			return Verification{}, err
		}
		report, err := integrity.VerifyFiles(dir.Path("nats"), "", holds)
		if err != nil {
			return Verification{}, err
		}
		if files = &report; !report.Intact() {
			return Verification{Log: files}, nil
		}
	}
	var result Verification
	var err error
	if running == nil {
		result, err = verifyStopped(ctx, dir)
	} else if operator, readErr := datadir.ReadContext(dir.Path("operator.json")); readErr == nil {
		result, err = verifyRunning(ctx, operator)
	} else {
		err = running
	}
	result.Log = files
	return result, err
}

// hasLog reports whether the directory has or had the log of an embedded NATS server.
func hasLog(dir datadir.Dir) bool {
	_, streams := os.Stat(dir.Path("nats"))
	_, mark := os.Stat(dir.Path("nats.mark"))
	return streams == nil || mark == nil
}

func verifyRunning(ctx context.Context, operator datadir.Context) (Verification, error) {
	served, err := fetchDigest(ctx, operator)
	if err != nil {
		return Verification{}, err
	}
	log, closeLog, err := openMirror(ctx, operator)
	if err != nil {
		return Verification{}, err
	}
	defer closeLog()
	if err := awaitMirror(ctx, log, served.Position); err != nil {
		return Verification{}, err
	}
	return compare(ctx, log, "running server", served)
}

// fetchDigest requests the digest of the world that a server serves.
func fetchDigest(ctx context.Context, operator datadir.Context) (digest projections.Digest, err error) {
	client := http.DefaultClient
	if operator.CAFile != "" || operator.CertFile != "" {
		config, err := operator.TLSConfig()
		if err != nil {
			return digest, err
		}
		client = certs.HTTPClient(config)
	}
	url := strings.TrimRight(operator.Address, "/") + "/v1/system/digest"
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return digest, err
	}
	req.Header.Set("Authorization", "Bearer "+operator.APIKey)
	res, err := client.Do(req)
	if err != nil {
		return digest, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return digest, fmt.Errorf("GET %s: %s", url, res.Status)
	}
	return digest, json.NewDecoder(res.Body).Decode(&digest)
}

const (
	mirrorTimeout = 30 * time.Second // maximum time for the mirror to catch up with the log after a start
	mirrorPoll    = 100 * time.Millisecond
)

// awaitMirror waits until the mirror of the log contains a position.
func awaitMirror(ctx context.Context, log eventlog.Log, position uint64) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	for {
		last, err := log.Last(ctx)
		if err != nil || last.Position >= position {
			return err
		}
		if sleep(ctx, mirrorPoll) != nil {
			return fmt.Errorf("the mirror of the log is still at position %d of %d: try again later",
				last.Position, position)
		}
	}
}

// verifyStopped compares the log in the files with the newest snapshot. It does not start the NATS
// server, which would change the files.
func verifyStopped(ctx context.Context, dir datadir.Dir) (Verification, error) {
	world, err := projections.Load(dir.Path("snapshots"))
	if err != nil {
		return Verification{}, err
	}
	if world == nil || world.Position() == 0 {
		return Verification{Equal: true}, nil
	}
	served, err := world.View().Digest()
	if err != nil {
		return Verification{}, err
	}
	return compare(ctx, eventlog.Files(dir.Path("nats")), "snapshot", served)
}

// compare folds the log up to the position of served, the digest of a state, and compares the
// result with it. against describes where served comes from.
func compare(ctx context.Context, log projections.Reader, against string,
	served projections.Digest) (Verification, error) {
	start := time.Now()
	folded, err := projections.Verify(ctx, log, served.Position)
	if err != nil {
		return Verification{}, err
	}
	return Verification{Against: against, Equal: folded.SHA256 == served.SHA256 && folded.EventID == served.EventID,
		Seconds: time.Since(start).Seconds(), Folded: folded, Served: served}, nil
}

// Err returns an error if the log is damaged or the states differ; nil otherwise.
func (v Verification) Err(dir datadir.Dir) error {
	switch {
	case v.Log != nil && !v.Log.Intact():
		return fmt.Errorf("the log is damaged: stop the server, and run 'anneal log repair --data %s'", dir)
	case !v.Equal:
		return errors.New("the log and the served state differ: keep a copy of the data directory, and report this " +
			"as a bug")
	}
	return nil
}

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

// Verification compares the world, folded again from the log, with the world that is served.
type Verification struct {
	Against string             `json:"against"` // "running server", "snapshot" or "", if there is neither
	Equal   bool               `json:"equal"`
	Seconds float64            `json:"seconds"`
	Folded  projections.Digest `json:"folded"`
	Served  projections.Digest `json:"served"`

	Log *integrity.FileReport `json:"log,omitempty"` // report on the files of the embedded server
}

// Verify verifies the files of an embedded log and, if they are whole, compares the state folded
// from the log with the served state: of a running server through its mirror and its API, of a
// stopped server through its newest snapshot.
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

// hasLog reports whether the directory contains or contained the log of an embedded server.
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

// fetchDigest returns the digest of the world that a server serves.
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
	mirrorTimeout = 30 * time.Second // maximum wait for the mirror to catch up with the log after a start
	mirrorPoll    = 100 * time.Millisecond
)

// awaitMirror returns once the mirror contains a position.
func awaitMirror(ctx context.Context, log eventlog.Log, position uint64) error {
	ctx, cancel := context.WithTimeout(ctx, mirrorTimeout)
	defer cancel()
	for {
		last, err := log.Last(ctx)
		if err != nil || last.Position >= position {
			return err
		}
		if sleep(ctx, mirrorPoll) != nil {
			return fmt.Errorf("the mirror is at position %d of %d: try again later", last.Position, position)
		}
	}
}

// verifyStopped reads the log from its files. It does not start the NATS server, which changes files.
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

// compare folds the log up to the position of served, and returns the comparison of the result with
// served. against names the source of served.
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

// Err returns an error that describes what differs or is damaged, or nil.
func (v Verification) Err(dir datadir.Dir) error {
	switch {
	case v.Log != nil && !v.Log.Intact():
		return fmt.Errorf("the log is damaged: stop the server, and run 'anneal log repair --data %s'", dir)
	case !v.Equal:
		return errors.New("the log and the served state differ: keep the data directory unchanged and report this")
	}
	return nil
}

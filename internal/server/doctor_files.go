package server

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"anneal/blobs/reconcile"
	"anneal/disk"
	"anneal/eventlog/integrity"
	"anneal/internal/certs"
	"anneal/internal/datadir"
)

const (
	lowSpace     = 5 << 30               // free bytes below which the doctor warns
	slowSync     = 20 * time.Millisecond // median time of a sync above which the doctor warns
	syncs        = 21                    // number of syncs that the doctor measures
	clockSkew    = time.Minute           // maximum time by which a file may be newer than the clock
	certExpiry   = 14 * 24 * time.Hour   // remaining validity of a certificate below which the doctor warns
	otherUsers   = 0o077                 // permissions of other users than the owner
	tmpfsMagic   = 0x01021994            // type of the file system tmpfs, as statfs(2) reports it
	dataAdvice   = "start the server once, or name its directory with --data"
	backupAdvice = "restore the file from a backup"
)

func checkData(_ context.Context, flags Flags) Finding {
	dir := datadir.Dir(flags.Data)
	if isNew(flags) {
		if _, err := os.Stat(flags.Data); err != nil {
			return Finding{Result: CheckWarning, Detail: flags.Data + " does not exist: the first start creates it",
				Advice: dataAdvice}
		}
		return Finding{Result: CheckWarning, Detail: flags.Data + " contains no data of a server", Advice: dataAdvice}
	}
	version, err := os.ReadFile(dir.Path("version"))
	if err != nil {
		return failed(err, "make the file readable for this user")
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(version)))
	if err != nil || n > disk.DataVersion {
		return Finding{Result: CheckFailed, Advice: "start the newer program that wrote it", Detail: fmt.Sprintf(
			"the directory has version %.20q, and this program reads up to %d", version, disk.DataVersion)}
	}
	return ok(flags.Data + " is a server's data directory")
}

// checkPrivateFiles reports files with secrets that other users of the machine can read.
func checkPrivateFiles(_ context.Context, flags Flags) Finding {
	dir := datadir.Dir(flags.Data)
	var open []string
	for _, path := range []string{dir.Path("context.json"), dir.Path("operator.json"), dir.Path("keys")} {
		err := filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			info, err := entry.Info()
			if err == nil && info.Mode().Perm()&otherUsers != 0 {
				open = append(open, path)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return failed(err, "run the doctor as the user of the server")
		}
	}
	if len(open) > 0 {
		return Finding{Result: CheckFailed, Detail: "other users can read " + strings.Join(open, ", "),
			Advice: "run chmod go= on these files, and replace the keys in them if the machine has other users"}
	}
	return ok("only the owner can read the keys and the context files")
}

func checkKeys(_ context.Context, flags Flags) Finding {
	if isNew(flags) {
		return skipped("the first start creates the keys")
	}
	dir := datadir.Dir(flags.Data)
	sums, err := filepath.Glob(dir.Path("keys", "*.sum"))
	if err != nil || len(sums) == 0 {
		return Finding{Result: CheckFailed, Detail: dir.Path("keys") + " has no keys", Advice: backupAdvice}
	}
	for _, sum := range sums {
		if _, err := dir.Key(strings.TrimSuffix(filepath.Base(sum), ".sum")); err != nil {
			return failed(err, backupAdvice)
		}
	}
	return ok(fmt.Sprintf("%d keys match their checksums", len(sums)))
}

// existing returns the data directory or, if it does not exist, the nearest directory above it.
func existing(flags Flags) string {
	dir, err := filepath.Abs(flags.Data)
	for err == nil {
		if _, missing := os.Stat(dir); missing == nil || dir == filepath.Dir(dir) {
			return dir
		}
		dir = filepath.Dir(dir)
	}
	return "."
}

func checkSpace(_ context.Context, flags Flags) Finding {
	dir := existing(flags)
	space := disk.On(dir)
	if err := space.Check(disk.Files, 0); err != nil {
		return failed(err, "free some space, or move the data directory to a larger disk")
	}
	free, known := space.Free()
	switch {
	case !known:
		return Finding{Result: CheckWarning, Detail: "the free space of " + dir + " is unknown",
			Advice: "use a local file system for --data"}
	case free < lowSpace:
		return Finding{Result: CheckWarning, Detail: fmt.Sprintf("%d MB are free on the disk of %s", free>>20, dir),
			Advice: fmt.Sprintf("plan for at least %d GB: below %d MB uploads are refused", int64(lowSpace)>>30,
				uint64(disk.Files)>>20)}
	}
	var system unix.Statfs_t
	if err := unix.Statfs(dir, &system); err == nil && uint64(system.Type) == tmpfsMagic { // Type is signed on Linux
		return Finding{Result: CheckWarning, Detail: dir + " is on tmpfs: a restart of the machine deletes all data",
			Advice: "use a directory on a disk for --data"}
	}
	return ok(fmt.Sprintf("%d GB are free", free>>30))
}

// checkSync measures how long a sync of a small write takes: each change waits for one.
func checkSync(_ context.Context, flags Flags) Finding {
	file, err := os.CreateTemp(existing(flags), ".anneal-doctor-")
	if err != nil {
		return failed(err, "make the directory writable for the user of the server")
	}
	defer os.Remove(file.Name())
	defer file.Close()
	var took []time.Duration
	for range syncs {
		began := time.Now()
		if _, err := file.Write(make([]byte, 4096)); err != nil {
			return failed(err, "check the disk")
		}
		if err := disk.Fdatasync(file); err != nil {
			return failed(err, "check the disk: it does not store what is written")
		}
		took = append(took, time.Since(began))
	}
	slices.Sort(took)
	median := took[len(took)/2].Round(10 * time.Microsecond)
	if median > slowSync {
		return Finding{Result: CheckWarning, Detail: fmt.Sprintf("a sync to disk takes %s (median of %d)", median, syncs),
			Advice: "each change waits for a sync: use an SSD with power-loss protection for --data"}
	}
	return ok(fmt.Sprintf("a sync to disk takes %s (median of %d)", median, syncs))
}

// checkClock reports a clock that is behind the newest file of the log, or that nothing
// synchronizes.
func checkClock(_ context.Context, flags Flags) Finding {
	dir := datadir.Dir(flags.Data)
	for _, path := range []string{dir.Path("nats.mark"), dir.Path(datadir.ClusterMark), dir.Path("context.json")} {
		if info, err := os.Stat(path); err == nil && time.Until(info.ModTime()) > clockSkew {
			return Finding{Result: CheckFailed, Detail: fmt.Sprintf("the clock is %s behind the time at which %s was written",
				time.Until(info.ModTime()).Round(time.Second), path), Advice: "set the clock, and synchronize it by NTP"}
		}
	}
	if synchronized, known := clockSynchronized(); known && !synchronized {
		return Finding{Result: CheckWarning, Detail: "the kernel says that nothing synchronizes the clock",
			Advice: "run chrony or systemd-timesyncd: API keys and signed URLs expire by the clock"}
	}
	return ok("the clock is not behind the data")
}

func checkDescriptors(_ context.Context, flags Flags) Finding {
	plan, err := planDescriptors()
	if err == nil {
		_, err = plan.connectionLimits(flags)
	}
	if err != nil {
		return failed(err, "raise the limit: ulimit -n 65536, or LimitNOFILE=65536 in the systemd unit")
	}
	return ok(fmt.Sprintf("%d files and connections, of which %d for HTTP", plan.limit, plan.http))
}

// checkLog reads the high-water mark of the log, which records failed syncs and damage.
func checkLog(_ context.Context, flags Flags) Finding {
	if isNew(flags) {
		return skipped("the first start creates the log")
	}
	dir := datadir.Dir(flags.Data)
	path := dir.Path("nats.mark")
	if flags.natsURL != "" {
		path = dir.Path(datadir.ClusterMark)
	}
	const verify = "run anneal log verify, and anneal log repair if it reports damage"
	mark, err := integrity.ReadMark(path)
	switch {
	case err != nil:
		return failed(err, verify)
	case mark.Failed:
		return Finding{Result: CheckWarning, Advice: "check the disk, and restart the server",
			Detail: "a sync of the log failed: the next start writes the end of the log again"}
	case mark.Damaged > 0 || mark.Lost > 0:
		return Finding{Result: CheckFailed, Advice: verify, Detail: fmt.Sprintf(
			"the log is damaged at position %d, or lost %d events", mark.Damaged, mark.Lost)}
	}
	return ok(fmt.Sprintf("%d events are on disk; anneal log verify reads all of them", mark.Durable))
}

func checkDeletions(_ context.Context, flags Flags) Finding {
	path := filepath.Join(flags.Data, reconcile.HoldFile)
	if why, err := os.ReadFile(path); err == nil {
		return Finding{Result: CheckWarning, Detail: "no file and no data key is deleted: " + strings.TrimSpace(string(why)),
			Advice: "when the data is complete, remove " + path}
	}
	return ok("files that no resource needs are deleted")
}

// checkCertificates reports certificates that cannot be read, or that expire soon.
func checkCertificates(_ context.Context, flags Flags) Finding {
	t := flags.tls
	if t.cert == "" && t.natsCert == "" {
		return skipped("no certificates are configured")
	}
	if _, err := t.load(flags.natsURL != ""); err != nil {
		return failed(err, "correct the flags of the certificates")
	}
	first := time.Time{}
	for _, pair := range [][4]string{{"--tls-cert", t.cert, "--tls-key", t.key},
		{"--nats-cert", t.natsCert, "--nats-key", t.natsKey}} {
		opened, err := certs.Open(pair[0], pair[1], pair[2], pair[3])
		if err != nil {
			return failed(err, "correct the flag "+pair[0])
		}
		if opened == nil {
			continue
		}
		current, err := opened.Current()
		if err != nil {
			return failed(err, "renew the certificate of "+pair[0])
		}
		leaf, err := x509.ParseCertificate(current.Certificate[0])
		if err != nil {
			return failed(err, "renew the certificate of "+pair[0])
		}
		if first.IsZero() || leaf.NotAfter.Before(first) {
			first = leaf.NotAfter
		}
	}
	remaining := time.Until(first)
	expiry := "a certificate expires at " + first.UTC().Format(time.RFC3339)
	switch {
	case remaining <= 0:
		return Finding{Result: CheckFailed, Detail: expiry, Advice: "renew it: the server loads the new file by itself"}
	case remaining < certExpiry:
		return Finding{Result: CheckWarning, Detail: expiry, Advice: "renew it: the server loads the new file by itself"}
	}
	return ok(expiry)
}

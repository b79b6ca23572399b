package cli

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"anneal/internal/datadir"
	"anneal/internal/server"
	"anneal/internal/settings"
)

// maxBundleFile is the maximum size of one file in a support bundle, in bytes.
const maxBundleFile = 64 << 20

func supportBundleCommand() *cobra.Command {
	var flags server.Flags
	c := &cobra.Command{Use: "support-bundle FILE",
		Short:   "Write what others need to find a fault to a new tar.gz file (run on the server's machine)",
		Args:    arguments(1, 1),
		Example: "  anneal support-bundle bundle.tar.gz --config anneal.yaml",
		Long: `The FILE contains the results of 'anneal doctor', the settings, the versions, the metrics, the nodes and their
work, the control planes, and the names and sizes of the files in the data directory. It contains no keys,
secrets, prompts, rows, weights or events. Names of accounts, nodes, deployments and jobs are in it: read it
before you pass it on.`,
		RunE: func(c *cobra.Command, args []string) error {
			all, err := settings.Apply(c.LocalFlags(), os.Getenv)
			if err != nil {
				return err
			}
			var names []string
			err = storeSecret(c, args[0], func() ([]byte, error) {
				parts := bundleParts(c.Context(), c, flags, all)
				for _, part := range parts {
					names = append(names, part.name)
				}
				return packBundle(parts)
			})
			if err != nil {
				return err
			}
			note(c, "wrote %s with %d files; it contains no keys and no secrets", args[0], len(names))
			return jsonOnly(c, map[string]any{"bundle": args[0], "files": names})
		}}
	addServerFlags(c, &flags)
	return c
}

// A bundlePart is one file of a support bundle.
type bundlePart struct {
	name    string
	content []byte
}

// bundleParts collects the files of a support bundle. A part that cannot be collected contains the
// reason.
func bundleParts(ctx context.Context, c *cobra.Command, flags server.Flags, all []settings.Setting) []bundlePart {
	var parts []bundlePart
	add := func(name string, content []byte, err error) {
		if err != nil {
			content = []byte("not collected: " + err.Error() + "\n")
		}
		parts = append(parts, bundlePart{name, withoutPasswords(content)})
	}
	addJSON := func(name string, value any) {
		content, err := json.MarshalIndent(value, "", "  ")
		add(name, content, err)
	}
	addJSON("version.json", map[string]any{"version": c.Root().Version, "go": runtime.Version(), "cpus": runtime.NumCPU(),
		"platform": runtime.GOOS + "/" + runtime.GOARCH, "time": time.Now().UTC()})
	addJSON("settings.json", all)
	addJSON("doctor.json", diagnose(ctx, c, flags))
	files, err := fileSizes(flags.Data)
	add("files.txt", files, err)
	file, err := datadir.ReadContext(datadir.Dir(flags.Data).Path("operator.json"))
	var operator *client
	if err == nil {
		operator, err = clientOf(c, file)
	}
	for name, path := range map[string]string{"readyz.json": "/readyz", "readyz-write.json": "/readyz/write",
		"metrics.txt": "/metrics", "metrics-detailed.txt": "/metrics/detailed", "nodes.json": "/v1/accounts/system/nodes",
		"accounts.json": "/v1/accounts", "backups.json": "/v1/backups"} {
		if err != nil {
			add(name, nil, err)
			continue
		}
		content, failed := operator.read(ctx, path)
		add(name, content, failed)
	}
	return parts
}

// read returns the body of a response of at most maxBundleFile bytes.
func (c *client) read(ctx context.Context, path string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, doctorTimeout)
	defer cancel()
	res, err := c.request(ctx, http.MethodGet, path, nil, "", nil)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	return io.ReadAll(io.LimitReader(res.Body, maxBundleFile))
}

// fileSizes lists the files of a data directory with their permissions, sizes and times. Of the
// directories with files of users it lists only the number of files and their size.
func fileSizes(dir string) ([]byte, error) {
	var list bytes.Buffer
	type total struct{ files, bytes int64 }
	totals := map[string]*total{"blobs": {}, "worker": {}, "datakeys": {}, "answers": {}, "tree": {}, "archive": {}}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return nil // deleted since the directory was read
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		top, _, nested := strings.Cut(name, string(filepath.Separator))
		if sum := totals[top]; nested && sum != nil {
			sum.files, sum.bytes = sum.files+1, sum.bytes+info.Size()
			return nil
		}
		changed := info.ModTime().UTC().Format(time.RFC3339)
		_, err = fmt.Fprintf(&list, "%s %12d %s %s\n", info.Mode(), info.Size(), changed, name)
		return err
	})
	for name, sum := range totals {
		fmt.Fprintf(&list, "%s/: %d files, %d bytes\n", name, sum.files, sum.bytes)
	}
	return list.Bytes(), err
}

var (
	urlPassword = regexp.MustCompile(`(://)[^/@\s"']+@`)
	keyText     = regexp.MustCompile(`ank_[A-Za-z0-9-]+_[A-Za-z0-9-]+_[0-9a-f]{8,}|eyJ[A-Za-z0-9_-]+\.[A-Za-z0-9_.-]+`)
)

// withoutPasswords replaces user names and passwords in URLs, API keys and ID tokens.
func withoutPasswords(content []byte) []byte {
	content = urlPassword.ReplaceAll(content, []byte("${1}REDACTED@"))
	return keyText.ReplaceAll(content, []byte("REDACTED"))
}

// packBundle returns a gzipped tar archive of the parts.
func packBundle(parts []bundlePart) ([]byte, error) {
	var packed bytes.Buffer
	compressed := gzip.NewWriter(&packed)
	archive := tar.NewWriter(compressed)
	for _, part := range parts {
		header := &tar.Header{Name: "support-bundle/" + part.name, Mode: 0o600, Size: int64(len(part.content)),
			ModTime: time.Now()}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(part.content); err != nil {
			return nil, err
		}
	}
	err := errors.Join(archive.Close(), compressed.Close())
	return packed.Bytes(), err
}

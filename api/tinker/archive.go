package tinker

import (
	"archive/tar"
	"crypto/hmac"
	"encoding/hex"
	"io"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"anneal/api/request"
	"anneal/domain"
	protocol "anneal/tinker"
)

// archiveURL redirects to a URL with which the files of a checkpoint can be downloaded as a tar
// archive without an API key, for ArchiveTime.
func archiveURL(c *call) (any, error) {
	path, _, row, err := c.pathCheckpoint()
	if err != nil {
		return nil, err
	}
	until := c.Now().Add(ArchiveTime).Truncate(time.Second).UTC()
	at := url.URL{Scheme: "http", Host: c.Request.Host, Path: protocol.BasePath + "archives/" + row.Name.Account() + "/" +
		path.Run + "/" + path.CheckpointID(), RawQuery: url.Values{"expires": {strconv.FormatInt(until.Unix(), 10)},
		"signature": {c.signature(row.Name, row.CreateEvent, path, until)}}.Encode()}
	if strings.HasPrefix(c.Address, "https:") || c.Request.TLS != nil {
		at.Scheme = "https"
	}
	c.Writer.Header().Set("Location", at.String())
	c.Writer.Header().Set("Expires", until.Format(http.TimeFormat))
	return nil, writeJSON(c.Writer, http.StatusFound, protocol.ArchiveURL{URL: at.String(), Expires: until})
}

// signature returns the signature of the URL of an archive.
func (c *call) signature(run domain.Name, event string, path protocol.Path, until time.Time) string {
	return signature(c.Call, run, event, path, until)
}

func signature(c *request.Call, run domain.Name, event string, path protocol.Path, until time.Time) string {
	text := strings.Join([]string{"archive of a training checkpoint", string(c.Direct), string(run), event,
		path.CheckpointID(), strconv.FormatInt(until.Unix(), 10)}, "\x00")
	return hex.EncodeToString(request.HashKey(c.Pepper, text))
}

// downloadArchive sends the files of a checkpoint as a tar archive.
func (s *Service) downloadArchive(c *request.Call) (any, error) {
	refused := request.Forbidden("URL_NOT_VALID",
		"the URL of the archive is not valid or has expired: get another one with GET …/archive")
	path := protocol.Path{Run: c.PathValue("run"), Kind: protocol.CheckpointKind(c.PathValue("kind")),
		Name: c.PathValue("name")}
	seconds, err := strconv.ParseInt(c.Request.URL.Query().Get("expires"), 10, 64)
	until := time.Unix(seconds, 0)
	if err != nil || !until.After(c.Now()) || c.PathValue("account") != c.Direct.Account() || !domain.ValidID(path.Run) {
		return nil, refused
	}
	row, ok := c.View().Runs.Get(domain.NewName(c.Direct.Account(), domain.TrainingRuns.Collection, path.Run))
	if !ok {
		return nil, refused
	}
	given := c.Request.URL.Query().Get("signature")
	if !hmac.Equal([]byte(given), []byte(signature(c, row.Name, row.CreateEvent, path, until))) {
		return nil, refused
	}
	saved, ok := row.State.Checkpoint(kindOf[path.Kind], path.Name)
	if !ok || saved.Expired(c.Now()) {
		return nil, request.NotFoundReason("CHECKPOINT_NOT_FOUND", "the checkpoint has expired or was deleted")
	}
	return nil, s.sendArchive(c, path, saved)
}

func (s *Service) sendArchive(c *request.Call, path protocol.Path, saved domain.TrainingCheckpoint) error {
	c.Writer.Header().Set("Content-Type", "application/x-tar")
	c.Writer.Header().Set("Content-Disposition", `attachment; filename="`+path.Run+"-"+path.Name+`.tar"`)
	archive, sent := tar.NewWriter(c.Writer), false
	for _, name := range slices.Sorted(maps.Keys(saved.Files.Sizes)) {
		file, err := s.Blobs.Get(c.Ctx, saved.Files.Prefix+name)
		if err == nil {
			sent = true
			err = archive.WriteHeader(&tar.Header{Name: name, Size: file.Size(), Mode: 0o644, ModTime: saved.Time})
			if err == nil {
				_, err = io.Copy(archive, file)
			}
			_ = file.Close()
		}
		switch {
		case err != nil && !sent:
			return err
		case err != nil:
			panic(http.ErrAbortHandler) // aborting the connection is how the client learns that the archive is incomplete
		}
	}
	return archive.Close()
}

// Package hub downloads models from servers that have the HTTP API of the Hugging Face Hub:
// https://huggingface.co/docs/hub/api.
package hub

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
)

// DefaultURL is the hub to use unless the user names another one.
const DefaultURL = "https://huggingface.co"

// Scheme is the prefix of the names of models on a hub.
const Scheme = "hf://"

// A Ref names a model on a hub: Repo is ORG/NAME, and Revision a branch, a tag or a commit.
type Ref struct{ Repo, Revision string }

// repoName and revisionName match the names of repositories and revisions that the hub accepts.
var (
	repoName     = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$`)
	revisionName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._/-]{0,127}$`)
)

// ParseRef parses the name of a model on a hub, hf://ORG/NAME[@REVISION]. The default revision is
// main.
func ParseRef(text string) (Ref, error) {
	rest, ok := strings.CutPrefix(text, Scheme)
	repo, revision, given := strings.Cut(rest, "@")
	if !given {
		revision = "main"
	}
	if !ok || !repoName.MatchString(repo) || !revisionName.MatchString(revision) || strings.Contains(revision, "..") {
		return Ref{}, fmt.Errorf("%q is not the name of a model on a hub: use %sORG/NAME or %sORG/NAME@REVISION", text,
			Scheme, Scheme)
	}
	return Ref{repo, revision}, nil
}

// A Hub is a server with the HTTP API of the Hugging Face Hub.
type Hub struct {
	URL    string // URL of the server without a path, such as DefaultURL
	Token  string // access token of a user; "" reads only public models
	Client *http.Client
}

// A Model has the list of a model's files at one commit.
type Model struct {
	Repo   string
	Commit string
	Files  []File
}

// Name returns the name of the model with its commit, which ParseRef can parse.
func (m Model) Name() string { return Scheme + m.Repo + "@" + m.Commit }

// A File is a file in the hub's list of a model's files.
type File struct {
	Name   string // path of the file in the repository, with slashes
	Size   int64  // size of the file in bytes
	SHA256 string // digest of the content, in hexadecimal; "" for small files
	GitID  string // git's blob ID of the content, a SHA-1; used when SHA256 is ""
}

// maxList is the maximum size of the hub's list of the files of a model, in bytes.
const maxList = 16 << 20

// Model requests the list of a model's files.
func (h *Hub) Model(ctx context.Context, ref Ref) (Model, error) {
	path := "/api/models/" + ref.Repo + "/revision/" + url.PathEscape(ref.Revision) + "?blobs=true"
	res, err := h.get(ctx, path, 0)
	if err != nil {
		return Model{}, fmt.Errorf("list the files of %s%s: %w", Scheme, ref.Repo, err)
	}
	defer res.Body.Close()
	if err := h.responseError(res, ref); err != nil {
		return Model{}, err
	}
	var list struct {
		SHA      string
		Siblings []struct {
			Name   string `json:"rfilename"`
			Size   int64
			BlobID string `json:"blobId"`
			LFS    struct{ SHA256 string }
		}
	}
	if err := json.NewDecoder(io.LimitReader(res.Body, maxList)).Decode(&list); err != nil || list.SHA == "" {
		return Model{}, fmt.Errorf("%s did not respond like a model hub: check the address (%v)", h.URL, err)
	}
	m := Model{Repo: ref.Repo, Commit: list.SHA}
	if !revisionName.MatchString(m.Commit) {
		return Model{}, fmt.Errorf("%s sent the commit %q, which is not a hexadecimal commit ID: check the address",
			h.URL, m.Commit)
	}
	for _, s := range list.Siblings {
		if !filepath.IsLocal(filepath.FromSlash(s.Name)) {
			return Model{}, fmt.Errorf("%s sent the file name %q, which is outside of the model's directory", h.URL, s.Name)
		}
		m.Files = append(m.Files, File{s.Name, s.Size, s.LFS.SHA256, s.BlobID})
	}
	return m, nil
}

// get requests a path of the hub. The response begins with the byte at offset.
func (h *Hub) get(ctx context.Context, path string, offset int64) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, strings.TrimRight(h.URL, "/")+path, nil)
	if err != nil {
		return nil, err
	}
	if h.Token != "" {
		// Net/http does not send the token to another host after a redirect.
		req.Header.Set("Authorization", "Bearer "+h.Token)
	}
	if offset > 0 {
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
	}
	return h.Client.Do(req)
}

// errTryAgain is wrapped by the errors of requests that may succeed if they are repeated.
var errTryAgain = errors.New("try again later")

// responseError returns an error that states why the hub refused a request for a model; nil if the
// hub accepted the request.
func (h *Hub) responseError(res *http.Response, ref Ref) error {
	of := Scheme + ref.Repo
	switch {
	case res.StatusCode < 300:
		return nil
	case res.StatusCode == http.StatusNotFound:
		return fmt.Errorf("%s has no model %s with the revision %q, or the model is private: check the name, and set "+
			"HF_TOKEN for a private model", h.URL, of, ref.Revision)
	case res.StatusCode == http.StatusUnauthorized, res.StatusCode == http.StatusForbidden:
		if h.Token == "" {
			return fmt.Errorf("%s requires an access token for %s: set HF_TOKEN", h.URL, of)
		}
		return fmt.Errorf("%s does not let the user of HF_TOKEN read %s: accept the model's conditions on its page, or use "+
			"the token of another user", h.URL, of)
	case res.StatusCode == http.StatusTooManyRequests, res.StatusCode >= 500:
		return fmt.Errorf("%s responded with %s for %s: %w", h.URL, res.Status, of, errTryAgain)
	}
	return fmt.Errorf("%s responded with %s for %s", h.URL, res.Status, of)
}

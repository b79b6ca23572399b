package safetensors

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"anneal/domain"
)

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
	maxIndex    = 64 << 20 // bytes
)

// Shards are a model's tensors: those of model.safetensors, or of the files in
// model.safetensors.index.json.
type Shards struct {
	files map[string]*File  // by name
	where map[string]string // file of each tensor; nil if there is only one file
}

// OpenDir opens the weights of a Hugging Face directory. The error is FailedPrecondition for an
// invalid directory. The caller closes it.
func OpenDir(dir string) (*Shards, error) {
	s := &Shards{files: map[string]*File{}}
	data, err := readIndex(filepath.Join(dir, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		s.files[weightsFile], err = Open(filepath.Join(dir, weightsFile))
		return s, err
	}
	if err != nil {
		return nil, err
	}
	var index struct {
		WeightMap map[string]string `json:"weight_map"`
	}
	if err := json.Unmarshal(data, &index); err != nil || len(index.WeightMap) == 0 {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has no weight_map from tensors to files", indexFile)
	}
	s.where = index.WeightMap
	for _, name := range s.where {
		if s.files[name] != nil {
			continue
		}
		if !shardName.MatchString(name) {
			return nil, errors.Join(domain.Errorf(domain.FailedPrecondition,
				"%s refers to a file that is not in the directory", indexFile), s.Close())
		}
		if s.files[name], err = Open(filepath.Join(dir, name)); err != nil {
			delete(s.files, name)
			return nil, errors.Join(err, s.Close())
		}
	}
	return s, nil
}

func readIndex(path string) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxIndex {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s is larger than %d bytes", indexFile, maxIndex)
	}
	return os.ReadFile(path)
}

var shardName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// file returns the file of a tensor.
func (s *Shards) file(tensor string) *File {
	if s.where == nil {
		return s.files[weightsFile]
	}
	return s.files[s.where[tensor]]
}

// Lookup returns a tensor's type and shape.
func (s *Shards) Lookup(name string) (Info, bool) {
	f := s.file(name)
	if f == nil {
		return Info{}, false
	}
	return f.Lookup(name)
}

// Read reads a tensor's values, see File.Read.
func (s *Shards) Read(dst []float32, name string, shape ...int) error {
	f := s.file(name)
	if f == nil {
		return domain.Errorf(domain.FailedPrecondition, "%s: tensor %s is missing", indexFile, name)
	}
	return f.Read(dst, name, shape...)
}

// ReadCodes reads a matrix in 8 bits, see File.ReadCodes.
func (s *Shards) ReadCodes(dst []byte, name string) (factors []float32, err error) {
	f := s.file(name)
	if f == nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s: tensor %s is missing", indexFile, name)
	}
	return f.ReadCodes(dst, name)
}

// Close closes the files.
func (s *Shards) Close() error {
	var err error
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

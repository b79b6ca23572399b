package safetensors

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"anneal/domain"
	"anneal/domain/weights"
)

const (
	weightsFile = "model.safetensors"
	indexFile   = "model.safetensors.index.json"
	maxIndex    = 64 << 20 // maximum size of indexFile in bytes
)

// Shards are the tensors of a model: those of model.safetensors, or those of the files that
// model.safetensors.index.json lists.
type Shards struct {
	files map[string]*File  // open files by name
	where map[string]string // name of the file with each tensor; nil if there is only one file
}

// OpenDir opens the weights in a Hugging Face directory. It returns FailedPrecondition if they are
// invalid. The caller must close the result.
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
				"%s has an invalid file name: use letters, digits, '.', '_' and '-', and no path", indexFile), s.Close())
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
		return nil, domain.Errorf(domain.FailedPrecondition, "%s has %d bytes, more than the limit of %d",
			indexFile, info.Size(), maxIndex)
	}
	return os.ReadFile(path)
}

var shardName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]*$`)

// find returns the file with a tensor, and the tensor's name in the file, which can lack
// weights.TensorPrefix. The file is nil if no file has the tensor.
func (s *Shards) find(tensor string) (*File, string) {
	for _, name := range []string{tensor, strings.TrimPrefix(tensor, weights.TensorPrefix)} {
		f := s.files[weightsFile]
		if s.where != nil {
			f = s.files[s.where[name]]
		}
		if f == nil {
			continue
		}
		if _, ok := f.Lookup(name); ok {
			return f, name
		}
	}
	if s.where == nil {
		return s.files[weightsFile], tensor
	}
	return s.files[s.where[tensor]], tensor
}

// File returns the file with a name; nil if the model has no such file.
func (s *Shards) File(name string) *File { return s.files[name] }

// Lookup returns the type and the shape of a tensor; false if no file has the tensor.
func (s *Shards) Lookup(name string) (Info, bool) {
	f, name := s.find(name)
	if f == nil {
		return Info{}, false
	}
	return f.Lookup(name)
}

// Read reads the values of a tensor into dst, as File.Read does.
func (s *Shards) Read(dst []float32, name string, shape ...int) error {
	f, name := s.find(name)
	if f == nil {
		return domain.Errorf(domain.FailedPrecondition, "%s: tensor %s is missing", indexFile, name)
	}
	return f.Read(dst, name, shape...)
}

// ReadQuantized reads the 8-bit values of a matrix into dst, and returns the scales of its rows, as
// File.ReadQuantized does.
func (s *Shards) ReadQuantized(dst []byte, name string) (scales []float32, err error) {
	f, name := s.find(name)
	if f == nil {
		return nil, domain.Errorf(domain.FailedPrecondition, "%s: tensor %s is missing", indexFile, name)
	}
	return f.ReadQuantized(dst, name)
}

// Close closes the files.
func (s *Shards) Close() error {
	var err error
	for _, f := range s.files {
		err = errors.Join(err, f.Close())
	}
	return err
}

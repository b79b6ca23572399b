package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"anneal/domain"
)

const (
	vocabularyFile = "tokenizer.json"
	configFile     = "tokenizer_config.json"
	maxFile        = 64 << 20
)

// config has the supported fields of tokenizer_config.json.
type config struct {
	BOS          named `json:"bos_token"`
	EOS          named `json:"eos_token"`
	AddBOS       *bool `json:"add_bos_token"`
	ChatTemplate any   `json:"chat_template"` // a template, or a list of named templates
}

// A named is a special token, which the file has as a string or as an object with the field
// content.
type named string

// UnmarshalJSON accepts a string, an object or null.
func (n *named) UnmarshalJSON(data []byte) error {
	var object struct {
		Content string `json:"content"`
	}
	if len(data) > 0 && data[0] == '{' {
		err := json.Unmarshal(data, &object)
		*n = named(object.Content)
		return err
	}
	return json.Unmarshal(data, (*string)(n))
}

// Load loads the tokenizer of the model in dir. It returns FailedPrecondition if the tokenizer has
// unsupported features.
func Load(dir string) (*Tokenizer, error) {
	files := map[string][]byte{}
	for _, name := range []string{vocabularyFile, configFile} {
		data, err := readLimited(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) && name == configFile {
			continue
		}
		if errors.Is(err, fs.ErrNotExist) {
			return nil, unsupported(name, "is missing from the model directory")
		}
		if err != nil {
			return nil, err
		}
		files[name] = data
	}
	return parse(files)
}

// Save writes the files from which the tokenizer was loaded to the directory dir.
func (t *Tokenizer) Save(dir string) error {
	for name, data := range t.files {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// Same reports whether t and o were loaded from equal vocabulary files.
func (t *Tokenizer) Same(o *Tokenizer) bool {
	return bytes.Equal(t.files[vocabularyFile], o.files[vocabularyFile])
}

func parse(files map[string][]byte) (*Tokenizer, error) {
	var v vocabulary
	if err := json.Unmarshal(files[vocabularyFile], &v); err != nil {
		return nil, unsupported(vocabularyFile, "is not a valid tokenizer: %v", err)
	}
	var c config
	if data := files[configFile]; data != nil {
		if err := json.Unmarshal(data, &c); err != nil {
			return nil, unsupported(configFile, "is not a valid tokenizer configuration: %v", err)
		}
	}
	t := &Tokenizer{
		specials: map[string]int{}, names: map[int]string{}, textual: map[int]bool{}, bos: -1, eos: -1, files: files,
	}
	for _, take := range []func(*vocabulary) error{
		t.takeModel, t.takeNormalizer, t.takeCuts, t.takeAdded, t.takeTokens, t.takeMerges,
	} {
		if err := take(&v); err != nil {
			return nil, err
		}
	}
	if err := t.takeEnds(&v, &c); err != nil {
		return nil, err
	}
	t.specialPattern = anyOf(slices.Collect(maps.Keys(t.specials)))
	t.textualPattern = anyOf(slices.DeleteFunc(slices.Collect(maps.Keys(t.specials)),
		func(name string) bool { return !t.textual[t.specials[name]] }))
	t.chat = c.ChatTemplate == chatTemplate && t.bos >= 0 &&
		t.Special(markUser) >= 0 && t.Special(markAssistant) >= 0 && t.Special(markEnd) >= 0
	return t, nil
}

// takeEnds sets the special tokens BOS and EOS. The configuration or, if it does not set this, the
// post-processor of tokenizer.json determines whether a text begins with BOS.
func (t *Tokenizer) takeEnds(v *vocabulary, c *config) error {
	t.last = -1
	if name := v.PostProcessor.last(); name != "" {
		if t.last = t.Special(name); t.last < 0 {
			return unsupported(vocabularyFile, "has a post-processor with the token %q, which the vocabulary lacks", name)
		}
	}
	first := v.PostProcessor.first()
	begins := first != ""
	if c.AddBOS != nil {
		begins = *c.AddBOS
	}
	if c.BOS == "" {
		c.BOS = named(first)
	}
	for _, one := range []struct {
		name named
		id   *int
	}{{c.BOS, &t.bos}, {c.EOS, &t.eos}} { // BOS and EOS may be the same token
		if one.name == "" {
			continue
		}
		if *one.id = t.Special(string(one.name)); *one.id < 0 {
			return unsupported(configFile, "refers to the token %q, which %s lacks", one.name, vocabularyFile)
		}
	}
	if !begins {
		t.bos = -1
	}
	return nil
}

func readLimited(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err := errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(path), err)
	}
	if len(data) > maxFile {
		return nil, unsupported(filepath.Base(path), "has more than the limit of %d bytes", maxFile)
	}
	return data, nil
}

func unsupported(file, format string, args ...any) error {
	return domain.Errorf(domain.FailedPrecondition, "%s "+format, append([]any{file}, args...)...)
}

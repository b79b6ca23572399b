package archive

import "errors"

// finderLinks is the number of links that a Finder reads at once.
const finderLinks = 1024

// A Finder finds events like Archive.Find. It is faster for many resources whose versions ascend, because
// it reads the links of neighboring events together. It must not be used concurrently.
type Finder struct {
	archive *Archive
	written uint64 // position up to which the file has links
	first   uint64 // position of the first link in links
	links   []byte
	buffer  [finderLinks * linkBytes]byte
}

// Finder returns a Finder that reads the links of this archive.
func (a *Archive) Finder() *Finder {
	a.mu.Lock()
	defer a.mu.Unlock()
	return &Finder{archive: a, written: a.written}
}

// Find returns the same result as Archive.Find.
func (f *Finder) Find(version, position uint64) (uint64, error) {
	if version <= position || version > f.written {
		return f.archive.Find(version, position)
	}
	if version < f.first || version >= f.first+uint64(len(f.links)/linkBytes) {
		f.first = version
		size := min(finderLinks, f.written-version+1) * linkBytes
		n, err := f.archive.links.ReadAt(f.buffer[:size], int64(version-1)*linkBytes)
		if f.links = f.buffer[:n-n%linkBytes]; len(f.links) == 0 {
			return 0, errors.Join(errDamaged, err)
		}
	}
	previous, jump, _, err := decodeLink(version, f.links[(version-f.first)*linkBytes:])
	if err != nil {
		return 0, err
	}
	if jump > position {
		previous = jump
	}
	return f.archive.Find(previous, position)
}

package reconcile

import (
	"iter"

	"anneal/projections"
)

// Referenced is the data outside of the log that the resources of one view refer to.
type Referenced struct{ all references }

// In returns the data that the resources of a view refer to.
func In(v *projections.View) Referenced { return Referenced{referencesOf(v, nil)} }

// Blob reports whether a resource refers to the file under a key of the bucket.
func (r Referenced) Blob(key string) bool { return isManaged(key) && r.all.blob(key) }

// Stored yields the keys and the sizes in bytes of the files that events have recorded, in any order.
// All of them exist; other files below the prefixes of a resource may exist.
func (r Referenced) Stored() iter.Seq2[string, int64] {
	return func(yield func(string, int64) bool) {
		for _, kind := range r.all {
			for prefix, sizes := range kind.stored {
				for name, size := range sizes {
					if !yield(prefix+name, size) {
						return
					}
				}
			}
		}
	}
}

// DataKeys yields the IDs of the data keys that resources refer to, in any order.
func (r Referenced) DataKeys() iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, kind := range r.all {
			for id := range kind.keys {
				if !yield(id) {
					return
				}
			}
		}
	}
}

package reconcile

import (
	"iter"

	"anneal/projections"
)

// Referenced describes the data outside of the log to which the resources of one view refer.
type Referenced struct{ all references }

// In returns the data to which the resources of a view refer.
func In(v *projections.View) Referenced { return Referenced{referencesOf(v, nil)} }

// Blob reports whether a resource refers to the file under key in the bucket.
func (r Referenced) Blob(key string) bool { return isManaged(key) && r.all.blob(key) }

// Stored yields the keys and the sizes in bytes of the files that events have recorded, in no
// particular order. All of them exist; below the prefixes of a resource, other files may exist too.
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

// DataKeys yields the IDs of the data keys to which resources refer, in no particular order.
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

package domain

import "time"

// UploadTime is how long files that were PUT to the signed URLs of an upload
// are kept for validation, from when the last of them arrived.
const UploadTime = 7 * 24 * time.Hour

// uploads is how far a resource is whose content arrives in uploads, numbered
// from 1, each of which is judged once.
type uploads struct {
	noun      string
	ready     bool // its content is fixed
	newest    int  // 0 before the first
	validated int  // the upload that was accepted or rejected last
}

// judged reports whether the validation result of an upload, accepted or not, is already
// recorded. It refuses the opposite of a recorded verdict, and one on an upload
// that another has replaced.
func (u uploads) judged(upload int, accepted bool) (bool, error) {
	switch {
	case upload == 0:
		return false, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload one, then validate")
	case upload == u.validated && u.ready != accepted:
		return false, precondition("UPLOAD_JUDGED", "another verdict on upload %d of the %s is already recorded", upload, u.noun)
	case upload == u.validated:
		return true, nil
	case upload != u.newest:
		return false, precondition("UPLOAD_SUPERSEDED", "upload %d was replaced by upload %d", upload, u.newest)
	}
	return false, nil
}

package domain

import "time"

// UploadTime is how long files uploaded to the signed URLs of an upload are kept for
// validation, counted from the newest file.
const UploadTime = 7 * 24 * time.Hour

// uploads is the state of the uploads of a dataset or a model. Uploads are numbered from 1; each is
// validated once.
type uploads struct {
	noun      string
	ready     bool // the dataset or model is READY: its content cannot change any more
	newest    int  // number of the newest upload, 0 before the first
	validated int  // number of the newest upload with a validation result
}

// resultRecorded reports whether the upload with this number is already recorded as valid, if
// accepted is true, or else as invalid. It returns an error when nothing was uploaded, the opposite
// result is recorded, or a newer upload has replaced this one.
func (u uploads) resultRecorded(upload int, accepted bool) (bool, error) {
	switch {
	case upload == 0:
		return false, precondition("NOTHING_UPLOADED", "no file has been uploaded: upload a file, then validate the upload")
	case upload == u.validated && u.ready != accepted:
		return false, precondition("UPLOAD_JUDGED",
			"another result of the validation of upload %d of the %s is already recorded",
			upload,
			u.noun)
	case upload == u.validated:
		return true, nil
	case upload != u.newest:
		return false, precondition("UPLOAD_SUPERSEDED",
			"upload %d was replaced by upload %d, so its validation result is not recorded", upload, u.newest)
	}
	return false, nil
}

package protocol

// ForLog is the purpose of a SignRequest for a new upload URL of the log of an attempt. The reply
// has a URL for the file name LogFile. An attempt first uses TrainAssignment.LogURL, and requests a
// new URL before that one expires.
const (
	ForLog  = "log"
	LogFile = "trainer.log"
)

// MaxLog is the maximum length of a job's log in bytes. Only the newest lines are kept.
const MaxLog = 4 << 20

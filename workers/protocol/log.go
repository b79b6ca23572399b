package protocol

// ForLog is the purpose of a SignRequest that stores the log of an attempt: the reply has a URL to
// PUT LogFile. An attempt uses TrainAssignment.LogURL at first, and requests another URL before
// that one expires.
const (
	ForLog  = "log"
	LogFile = "trainer.log"
)

// MaxLog is the maximum size of a job's log in bytes; the newest lines are kept.
const MaxLog = 4 << 20

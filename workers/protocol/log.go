package protocol

// ForLog is the purpose of a SignRequest that stores the log of a job. The reply has a URL to PUT
// LogFile and, if the job has a log of earlier attempts, a URL to GET it as EarlierLog.
const (
	ForLog     = "log"
	LogFile    = "log.txt"
	EarlierLog = "earlier-log.txt"
)

// MaxLog is the maximum size of a job's log in bytes; the newest lines are kept.
const MaxLog = 4 << 20

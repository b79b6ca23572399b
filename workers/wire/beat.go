package wire

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Phases of an attempt on a node.
const (
	Preparing = "preparing" // waiting for its turn, and downloading
	Training  = "training"
	Writing   = "writing"  // storing what came of it
	Stopping  = "stopping" // saving its last checkpoint
	Lost      = "lost"     // begun by an agent that is no more, and not to be begun again
)

// MaxRows is the most metric rows in a beat; an agent with more beats again at
// once. MaxValues is the most figures in a row.
const (
	MaxRows   = 200
	MaxValues = 64
)

// TakenOver is the reason of the refusal to an agent whose node another agent
// has taken over: it must stop everything.
const TakenOver = "NODE_TAKEN_OVER"

// A Heartbeat says all that runs on a node, and how far it is.
type Heartbeat struct {
	Version  int             `json:"version"`
	Node     domain.NodeSpec `json:"node"`
	Boot     string          `json:"boot"`              // of this run of the agent
	Leaving  bool            `json:"leaving,omitempty"` // the last beat: nothing runs any more
	Number   uint64          `json:"number"`            // counts the beats of a boot, from 1
	Seen     uint64          `json:"seen"`              // the newest position that a desk told the agent
	Attempts []Attempt       `json:"attempts,omitempty"`
	Replicas []Replica       `json:"replicas,omitempty"`
}

// An Attempt of a job on a node.
type Attempt struct {
	Job     domain.Name       `json:"job"`
	Attempt int               `json:"attempt"`
	Made    time.Time         `json:"made"` // see Train
	Phase   string            `json:"phase"`
	Step    int               `json:"step"` // done; what it resumed from when none is
	Steps   int               `json:"steps"`
	Rows    []engines.Metrics `json:"rows,omitempty"` // from the acknowledged step on
}

// ID is the attempt's allocation's.
func (a Attempt) ID() string { return domain.AllocationID(a.Job, a.Attempt) }

// ReplicaFailed is the state of a replica that broke; the others are the domain's.
const ReplicaFailed = "failed"

// A Replica of a deployment on a node.
type Replica struct {
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Made       time.Time   `json:"made"` // see Serve
	State      string      `json:"state"`
	Reason     string      `json:"reason,omitempty"` // why it failed
	Load       Load        `json:"load"`
	Addons     []Addon     `json:"addons,omitempty"` // ordered, and how far they are
}

// ID is the replica's allocation's.
func (r Replica) ID() string { return domain.ReplicaAllocationID(r.Deployment, r.Replica) }

// Load is how busy a replica is. Rates are over the time since the last beat.
type Load struct {
	Active                int     `json:"active"` // being answered
	Queued                int     `json:"queued"`
	Slots                 int     `json:"slots"`
	RequestsPerSecond     float64 `json:"requestsPerSecond"`
	PromptTokensPerSecond float64 `json:"promptTokensPerSecond"`
	TokensPerSecond       float64 `json:"tokensPerSecond"`
}

// Orders say what should run on a node. What the beat listed and Keep does not
// is to be stopped at once, and nothing of it to be kept.
type Orders struct {
	Version  int            `json:"version"`
	Position uint64         `json:"position"` // that the orders are of
	Interval time.Duration  `json:"interval"` // until the next beat, nanoseconds
	Keep     []string       `json:"keep,omitempty"`
	Cancel   []string       `json:"cancel,omitempty"` // of Keep: save a checkpoint, stop, and report it
	Train    []Train        `json:"train,omitempty"`  // begin
	Serve    []Serve        `json:"serve,omitempty"`  // begin
	Acked    map[string]int `json:"acked,omitempty"`  // attempt → step of the newest row that arrived
	Equip    []Equipment    `json:"equip,omitempty"`  // of Keep: replicas with addons; others have none
}

// A Train order is all that an attempt needs, and nothing else. Made is when
// the job was created: it tells the attempt from one of the same number of a job
// that had the name before, and goes with all that is said of the attempt.
type Train struct {
	Job        domain.Name           `json:"job"`
	Attempt    int                   `json:"attempt"`
	Made       time.Time             `json:"made"`
	Method     string                `json:"method"`
	Base       Folder                `json:"base"`
	Adapter    *Folder               `json:"adapter,omitempty"`
	Data       Folder                `json:"data"`
	Eval       *Folder               `json:"eval,omitempty"`
	Resume     *Folder               `json:"resume,omitempty"`
	Evaluator  *Evaluator            `json:"evaluator,omitempty"`
	ResumeStep int                   `json:"resumeStep,omitempty"`
	Settings   engines.TrainSettings `json:"settings"`
	Seed       uint64                `json:"seed"`
	CPUMilli   int64                 `json:"cpuMilli"` // what it may use
}

// ID is the attempt's allocation's.
func (t Train) ID() string { return domain.AllocationID(t.Job, t.Attempt) }

// An Evaluator is code that scores answers of an attempt, and the secrets that
// it names, by their key names.
type Evaluator struct {
	Code      Folder            `json:"code"`
	EntryFile string            `json:"entryFile"`
	EntryFunc string            `json:"entryFunc"`
	Env       map[string]string `json:"env,omitempty"`
}

// A Serve order is all that a replica needs. Made is when the deployment was
// created, for the same reason as a job's.
type Serve struct {
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	Made       time.Time   `json:"made"`
	Base       Folder      `json:"base"`
	Adapter    *Folder     `json:"adapter,omitempty"`
	MemoryMiB  int64       `json:"memoryMiB,omitempty"` // set aside for it on the node
	Context    int         `json:"context,omitempty"`   // most tokens of a text; 0 is the model's window

	Trusted      bool                    `json:"trusted,omitempty"` // the model comes from the operator of the platform
	Speech       *domain.SpeechSettings  `json:"speech,omitempty"`  // how the model is listened with; nil is one that answers
	Guessing     engines.SpeculationMode `json:"guessing,omitzero"`
	Accelerators map[string]int          `json:"accelerators,omitempty"` // that the replica takes, type → devices
}

// ID is the replica's allocation's.
func (s Serve) ID() string { return domain.ReplicaAllocationID(s.Deployment, s.Replica) }

// A Folder is stored files to be fetched. Two with the same key have the same
// content, for ever.
type Folder struct {
	Key   string `json:"key"`
	Files []File `json:"files"`
}

// A File is one of a folder.
type File struct {
	Name string `json:"name"`          // path below the folder
	Size int64  `json:"size"`          // bytes
	Sum  string `json:"sum,omitempty"` // SHA-256 in hexadecimal, where it is known
	URL  string `json:"url"`           // to GET it from
}

// Size is the sum of the files', in bytes.
func (f Folder) Size() int64 {
	var sum int64
	for _, file := range f.Files {
		sum += file.Size
	}
	return sum
}

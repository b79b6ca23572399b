package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Phases of an attempt on a node.
const (
	Preparing = "preparing" // waiting for an earlier attempt to stop, or downloading
	Training  = "training"
	Writing   = "writing"  // storing its results
	Stopping  = "stopping" // saving its last checkpoint
	Lost      = "lost"     // ended, or started by an earlier run of the agent; it never starts again
)

// Limits of a heartbeat.
const (
	MaxRows   = 200 // metric rows; an agent that has more rows sends another heartbeat immediately
	MaxValues = 64  // metrics in a row
)

// TakenOver is the reason of the error that an agent receives when another agent has registered as
// its node. The agent must then stop all work.
const TakenOver = "NODE_TAKEN_OVER"

// A Heartbeat reports everything that runs on a node, and its progress.
type Heartbeat struct {
	Version  int             `json:"version"`
	Node     domain.NodeSpec `json:"node"`
	Boot     string          `json:"boot"`              // ID of this run of the agent
	Leaving  bool            `json:"leaving,omitempty"` // the agent shuts down: this is its last heartbeat
	Number   uint64          `json:"number"`            // number of the heartbeat since the start of the agent, from 1
	Seen     uint64          `json:"seen"`              // newest log position that a coordinator sent
	Attempts []Attempt       `json:"attempts,omitempty"`
	Replicas []Replica       `json:"replicas,omitempty"`
	Devices  []Device        `json:"devices,omitempty"`
}

// An Attempt is the state of one attempt of a job on a node.
type Attempt struct {
	Job        domain.Name       `json:"job"`
	Attempt    int               `json:"attempt"`
	CreateTime time.Time         `json:"made"` // see TrainAssignment
	Phase      string            `json:"phase"`
	Step       int               `json:"step"` // last completed step, or the step that the attempt resumed from
	Steps      int               `json:"steps"`
	Acked      int               `json:"acked,omitempty"` // step up to which the coordinator has received rows
	Rows       []engines.Metrics `json:"rows,omitempty"`  // metric rows from Acked on, without gaps
}

// ID returns the ID of the attempt's allocation.
func (a Attempt) ID() string { return domain.AllocationID(a.Job, a.Attempt) }

// ReplicaFailed is the state of a failed replica; package domain defines the other states of a
// replica.
const ReplicaFailed = "failed"

// A Replica is the state of one replica of a deployment on a node.
type Replica struct {
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	CreateTime time.Time   `json:"made"` // see ServeAssignment
	State      string      `json:"state"`
	Reason     string      `json:"reason,omitempty"`    // why the replica failed, when State is failed
	Preempted  bool        `json:"preempted,omitempty"` // the replica failed because its device failed; not counted
	Load       Load        `json:"load"`
	Addons     []Addon     `json:"addons,omitempty"` // assigned addons and their states
}

// ID returns the ID of the replica's allocation.
func (r Replica) ID() string { return domain.ReplicaAllocationID(r.Deployment, r.Replica) }

// Load is the load of a replica. Rates are averages since the last heartbeat.
type Load struct {
	Active                int     `json:"active"` // requests that hold a slot
	Queued                int     `json:"queued"`
	Slots                 int     `json:"slots"`
	RequestsPerSecond     float64 `json:"requestsPerSecond"`
	CompletedPerSecond    float64 `json:"completedPerSecond"`
	PromptTokensPerSecond float64 `json:"promptTokensPerSecond"`
	TokensPerSecond       float64 `json:"tokensPerSecond"`
}

// Assignments is the reply to a heartbeat: what should run on the node. The agent immediately stops
// work that its heartbeat listed and Keep does not, without saving anything.
type Assignments struct {
	Version  int               `json:"version"`
	Position uint64            `json:"position"`         // log position of the view that the assignments are from
	Interval time.Duration     `json:"interval"`         // time until the next heartbeat, in nanoseconds
	Keep     []string          `json:"keep,omitempty"`   // allocation IDs of work that continues
	Cancel   []string          `json:"cancel,omitempty"` // attempts in Keep that must save a checkpoint, stop and report
	Train    []TrainAssignment `json:"train,omitempty"`  // attempts to start
	Serve    []ServeAssignment `json:"serve,omitempty"`  // replicas to start
	Acked    map[string]int    `json:"acked,omitempty"`  // attempt → step of the newest metric row received
	Addons   []ReplicaAddons   `json:"equip,omitempty"`  // for the replicas in Keep that should have addons
}

// A TrainAssignment holds everything that an attempt needs. CreateTime is the creation time of the
// job. Every message about an attempt has CreateTime, which distinguishes the attempt from an
// attempt with the same number of an earlier job with the same name.
type TrainAssignment struct {
	Job        domain.Name           `json:"job"`
	Attempt    int                   `json:"attempt"`
	CreateTime time.Time             `json:"made"`
	Method     string                `json:"method"`
	Base       FileSet               `json:"base"`
	BaseModel  domain.Name           `json:"baseModel,omitempty"` // base model, which a trained adapter must name
	Adapter    *FileSet              `json:"adapter,omitempty"`
	Data       FileSet               `json:"data"`
	Eval       *FileSet              `json:"eval,omitempty"`
	Resume     *FileSet              `json:"resume,omitempty"`
	Evaluator  *Evaluator            `json:"evaluator,omitempty"`
	ResumeStep int                   `json:"resumeStep,omitempty"`
	Settings   engines.TrainSettings `json:"settings"`
	Seed       uint64                `json:"seed"`
	CPUMilli   int64                 `json:"cpuMilli"` // CPU limit in millicores

	Accelerators map[string]int `json:"accelerators,omitempty"` // allocated: type → devices

	Gang *Gang `json:"gang,omitempty"` // nil for an attempt on one node

	LogURL        string `json:"logUrl,omitempty"`        // signed, to PUT the log of the attempt
	EarlierLogURL string `json:"earlierLogUrl,omitempty"` // signed, to GET the log of earlier attempts; "" if none
}

// ID returns the ID of the attempt's allocation.
func (t TrainAssignment) ID() string { return domain.AllocationID(t.Job, t.Attempt) }

// An Evaluator is the code that scores the completions of an attempt. Env holds the values of the
// evaluator's secrets by their key names.
type Evaluator struct {
	Code      FileSet           `json:"code"`
	EntryFile string            `json:"entryFile"`
	EntryFunc string            `json:"entryFunc"`
	Env       map[string]string `json:"env,omitempty"`
}

// A ServeAssignment holds everything that a replica needs. CreateTime is the creation time of the
// deployment, and has the same purpose as in TrainAssignment.
type ServeAssignment struct {
	Deployment    domain.Name `json:"deployment"`
	Replica       string      `json:"replica"`
	CreateTime    time.Time   `json:"made"`
	Base          FileSet     `json:"base"`
	Adapter       *FileSet    `json:"adapter,omitempty"`
	Draft         *FileSet    `json:"draft,omitempty"`     // draft model
	MemoryMiB     int64       `json:"memoryMiB,omitempty"` // memory limit
	ContextLength int         `json:"context,omitempty"`   // maximum in tokens; 0 is the maximum of the model
	LongPrompts   bool        `json:"longPrompts,omitempty"`
	// DraftMemoryMiB is the part of MemoryMiB for the draft model.
	DraftMemoryMiB int64 `json:"draftMemoryMiB,omitempty"`
	AddonSlots     int   `json:"addonSlots,omitempty"` // maximum number of addons in the engine; 0 is no limit

	Trusted      bool                    `json:"trusted,omitempty"` // the model belongs to the operator
	Speech       *domain.SpeechSettings  `json:"speech,omitempty"`  // settings of a speech model; nil for a text model
	Speculation  engines.SpeculationMode `json:"guessing,omitzero"`
	Accelerators map[string]int          `json:"accelerators,omitempty"` // allocated: type → devices
	Share        domain.DeviceShare      `json:"share,omitzero"`         // of the one device in Accelerators
}

// ID returns the ID of the replica's allocation.
func (s ServeAssignment) ID() string { return domain.ReplicaAllocationID(s.Deployment, s.Replica) }

// A FileSet lists stored files to download. Two file sets with the same Key have the same content.
type FileSet struct {
	Key   string `json:"key"`
	Files []File `json:"files"`
}

// A File is one file of a FileSet.
type File struct {
	Name string `json:"name"`          // relative path
	Size int64  `json:"size"`          // bytes
	Sum  string `json:"sum,omitempty"` // SHA-256 in hexadecimal; "" if unknown
	URL  string `json:"url"`           // signed, for GET
}

// Size returns the total size of the files in bytes.
func (s FileSet) Size() int64 {
	var total int64
	for _, file := range s.Files {
		total += file.Size
	}
	return total
}

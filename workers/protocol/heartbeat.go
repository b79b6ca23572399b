package protocol

import (
	"time"

	"anneal/domain"
	"anneal/engines"
)

// Phases of an attempt on its node.
const (
	Preparing = "preparing" // the attempt waits for an earlier one to stop, or downloads its files
	Training  = "training"
	Writing   = "writing"  // the attempt stores its results
	Stopping  = "stopping" // the attempt saves its last checkpoint
	// the attempt has ended, or an earlier process of the agent started it; the agent never starts it
	// again
	Lost = "lost"
)

// Limits of a heartbeat's content.
const (
	MaxRows   = 200 // maximum number of rows of metrics; an agent with more rows sends the next heartbeat immediately
	MaxValues = 64  // maximum number of metric values in a row
)

// TakenOver is the reason of the error for an agent after another one has registered as its node.
// The agent must stop all work.
const TakenOver = "NODE_TAKEN_OVER"

// A Heartbeat reports everything that runs on a node, and its progress.
type Heartbeat struct {
	Version  int             `json:"version"`
	Node     domain.NodeSpec `json:"node"`
	Boot     string          `json:"boot"`              // random ID of this run of the agent's process
	Leaving  bool            `json:"leaving,omitempty"` // the agent shuts down, and this is its last heartbeat
	Number   uint64          `json:"number"`            // sequence number of the heartbeat since the agent started, from 1
	Seen     uint64          `json:"seen"`              // highest log position that the agent has received in a reply
	Attempts []Attempt       `json:"attempts,omitempty"`
	Replicas []Replica       `json:"replicas,omitempty"`
	Devices  []Device        `json:"devices,omitempty"`
}

// An Attempt is the state of an attempt of a job on a node.
type Attempt struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"` // creation time of the job; see TrainAssignment
	Phase      string      `json:"phase"`
	Step       int         `json:"step"` // last completed training step, or the step from which the attempt resumed
	Steps      int         `json:"steps"`
	// step up to which the coordinator has acknowledged the rows of metrics
	Acked int               `json:"acked,omitempty"`
	Rows  []engines.Metrics `json:"rows,omitempty"` // rows of metrics from the step Acked on, without gaps
}

// ID returns the ID of the attempt's allocation.
func (a Attempt) ID() string { return domain.AllocationID(a.Job, a.Attempt) }

// ReplicaFailed is the state of a replica that has failed. Package domain has its other states.
const ReplicaFailed = "failed"

// A Replica is the state of a replica of a deployment on a node.
type Replica struct {
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	CreateTime time.Time   `json:"made"` // creation time of the deployment; see ServeAssignment
	State      string      `json:"state"`
	Reason     string      `json:"reason,omitempty"` // why the replica failed, when State is ReplicaFailed
	// a failed device of the node made the replica fail, so that the deployment is not to blame: the
	// failure does not count toward the deployment's failures
	Preempted bool    `json:"preempted,omitempty"`
	Load      Load    `json:"load"`
	Addons    []Addon `json:"addons,omitempty"` // states of the addons that are assigned to the replica
}

// ID returns the ID of the replica's allocation.
func (r Replica) ID() string { return domain.ReplicaAllocationID(r.Deployment, r.Replica) }

// Load is the load of a replica. Its rates are averages since the last heartbeat.
type Load struct {
	Active                int     `json:"active"` // number of requests in progress, each of which uses a slot
	Queued                int     `json:"queued"`
	Slots                 int     `json:"slots"`
	RequestsPerSecond     float64 `json:"requestsPerSecond"`
	CompletedPerSecond    float64 `json:"completedPerSecond"`
	PromptTokensPerSecond float64 `json:"promptTokensPerSecond"`
	TokensPerSecond       float64 `json:"tokensPerSecond"`
	// Engine is the load that the engine reports; nil if it reports none.
	Engine *engines.ModelLoad `json:"engine,omitempty"`
	// AddonLoadTime is the average time in which the engine loads an addon; 0 if it is not known.
	AddonLoadTime time.Duration `json:"addonLoadTime,omitempty"`
}

// Assignments is the reply to a heartbeat: what should run on the node. The agent immediately stops
// all work in its heartbeat that is not in Keep, without saving a checkpoint.
type Assignments struct {
	Version int `json:"version"`
	// log position of the view from which the assignments were computed
	Position uint64        `json:"position"`
	Interval time.Duration `json:"interval"`       // time until the next heartbeat in nanoseconds
	Keep     []string      `json:"keep,omitempty"` // allocation IDs of running work that stays
	// allocation IDs of attempts in Keep that must save a checkpoint, stop and report
	Cancel []string `json:"cancel,omitempty"`
	// allocation IDs of attempts in Keep whose training service is idle: unless it has operations in
	// progress, an attempt saves its runs, stops and reports ReportIdle
	Idle  []string          `json:"idle,omitempty"`
	Train []TrainAssignment `json:"train,omitempty"` // attempts that the agent should start
	Serve []ServeAssignment `json:"serve,omitempty"` // replicas that the agent should start
	// by allocation ID of the attempt: step up to which the coordinator has its rows of metrics
	Acked  map[string]int  `json:"acked,omitempty"`
	Addons []ReplicaAddons `json:"equip,omitempty"` // addons that the replicas in Keep should have
}

// A TrainAssignment has everything that a node needs to run an attempt. CreateTime is the creation
// time of the job. Every message about an attempt contains it, to tell the attempt from that of an
// earlier job with the same name.
type TrainAssignment struct {
	Job        domain.Name `json:"job"`
	Attempt    int         `json:"attempt"`
	CreateTime time.Time   `json:"made"`
	Method     string      `json:"method"`
	Base       FileSet     `json:"base"`
	// ID of the base model, which the agent writes into a trained adapter
	BaseModel  domain.Name           `json:"baseModel,omitempty"`
	Adapter    *FileSet              `json:"adapter,omitempty"`
	Data       FileSet               `json:"data"`
	Eval       *FileSet              `json:"eval,omitempty"`
	Resume     *FileSet              `json:"resume,omitempty"`
	Evaluator  *Evaluator            `json:"evaluator,omitempty"`
	ResumeStep int                   `json:"resumeStep,omitempty"`
	Settings   engines.TrainSettings `json:"settings"`
	Seed       uint64                `json:"seed"`
	CPUMilli   int64                 `json:"cpuMilli"` // CPU limit of the attempt in millicores

	Accelerators map[string]int `json:"accelerators,omitempty"` // number of allocated devices by accelerator type

	// Serve is set if the attempt serves training runs instead of training: see TrainingRunsRequest
	Serve bool `json:"serve,omitempty"`

	Gang *Gang `json:"gang,omitempty"` // nodes that compute the attempt together; nil for an attempt on one node

	LogURL string `json:"logUrl,omitempty"` // signed URL for uploading the log of the attempt (HTTP PUT)
	// signed URL for reading the log of earlier attempts (HTTP GET); "" when there is none
	EarlierLogURL string `json:"earlierLogUrl,omitempty"`

	domain.Trace // trace context that the attempt continues; the zero value for none
}

// ID returns the ID of the attempt's allocation.
func (t TrainAssignment) ID() string { return domain.AllocationID(t.Job, t.Attempt) }

// An Evaluator is the code that scores the completions of an attempt. Env has the values of its
// secrets by key name; they become environment variables.
type Evaluator struct {
	Code      FileSet           `json:"code"`
	EntryFile string            `json:"entryFile"`
	EntryFunc string            `json:"entryFunc"`
	Env       map[string]string `json:"env,omitempty"`
}

// A ServeAssignment has everything that a node needs to run a replica. CreateTime is the creation
// time of the deployment, which tells the replica from that of an earlier deployment with the same
// name.
type ServeAssignment struct {
	Deployment domain.Name `json:"deployment"`
	Replica    string      `json:"replica"`
	CreateTime time.Time   `json:"made"`
	Base       FileSet     `json:"base"`
	Adapter    *FileSet    `json:"adapter,omitempty"`
	// files of the draft model for speculative decoding; nil for none
	Draft     *FileSet `json:"draft,omitempty"`
	MemoryMiB int64    `json:"memoryMiB,omitempty"` // memory limit of the replica on the node
	// maximum context length in tokens; 0 means the model's own maximum
	ContextLength int  `json:"context,omitempty"`
	LongPrompts   bool `json:"longPrompts,omitempty"`
	// DraftMemoryMiB is the part of MemoryMiB that is for the draft model.
	DraftMemoryMiB int64 `json:"draftMemoryMiB,omitempty"`
	// maximum number of addons that the engine has loaded at a time; 0 means no limit
	AddonSlots int `json:"addonSlots,omitempty"`

	Trusted      bool                    `json:"trusted,omitempty"` // the operator provides the model, so its code may run
	Speech       *domain.SpeechSettings  `json:"speech,omitempty"`  // settings of a speech model; nil for a text model
	Speculation  engines.SpeculationMode `json:"guessing,omitzero"`
	Accelerators map[string]int          `json:"accelerators,omitempty"` // number of allocated devices by accelerator type
	// share of the device in Accelerators, when the replica does not get all of it
	Share domain.DeviceShare `json:"share,omitzero"`

	domain.Trace // trace context that the replica's start continues; the zero value for none
}

// ID returns the ID of the replica's allocation.
func (s ServeAssignment) ID() string { return domain.ReplicaAllocationID(s.Deployment, s.Replica) }

// A FileSet is a set of stored files to download. File sets with the same Key have the same
// content.
type FileSet struct {
	Key   string `json:"key"`
	Files []File `json:"files"`
}

// A File is one file of a FileSet.
type File struct {
	Name string `json:"name"`          // path relative to the directory of the file set
	Size int64  `json:"size"`          // length in bytes
	Sum  string `json:"sum,omitempty"` // SHA-256 in hexadecimal; "" when it is unknown
	URL  string `json:"url"`           // signed URL for downloading the file (HTTP GET)
}

// Size returns the total length of the files in bytes.
func (s FileSet) Size() int64 {
	var total int64
	for _, file := range s.Files {
		total += file.Size
	}
	return total
}

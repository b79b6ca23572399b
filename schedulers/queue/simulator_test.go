package queue_test

import (
	"compress/gzip"
	"container/heap"
	"encoding/csv"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"anneal/schedulers/queue"
)

const (
	nodeUnits  = 8
	checkpoint = 300 // seconds of work between checkpoints
	restart    = 120 // seconds that a preempted job needs to load its checkpoint
	period     = 60  // seconds between passes while jobs wait
)

// A traceJob is a row of the trace.
type traceJob struct {
	arrival, duration, gpus int64
	account                 string
}

// readTrace returns the jobs of testdata/traces/philly.csv.gz in the order of their arrival.
func readTrace(t testing.TB) []traceJob {
	file, err := os.Open("testdata/traces/philly.csv.gz")
	require.NoError(t, err)
	defer file.Close()
	unzipped, err := gzip.NewReader(file)
	require.NoError(t, err)
	rows, err := csv.NewReader(unzipped).ReadAll()
	require.NoError(t, err)
	number := func(text string) int64 {
		n, err := strconv.ParseInt(text, 10, 64)
		require.NoError(t, err)
		return n
	}
	var jobs []traceJob
	for _, row := range rows[1:] {
		jobs = append(jobs, traceJob{number(row[0]), number(row[1]), number(row[2]), row[3]})
	}
	return jobs
}

// A simulated job is a job of the trace in a simulated cluster.
type simulated struct {
	queue.Job
	duration int64
	gpus     int64
	began    int64 // when the work of the running attempt began, after its restart
	before   int64 // work of earlier attempts
	attempt  int
	first    int64 // when the first attempt started
	end      int64
}

// A simulator replays jobs on a cluster with a virtual clock. A preempted job is killed at once: it
// loses its work since the last checkpoint, and its next attempt holds its nodes for the restart.
type simulator struct {
	queue   *queue.Queue
	jobs    []*simulated
	byID    map[string]*simulated
	running map[*simulated]bool
	ends    ends
	lost    int64 // units × seconds of lost work and of restarts
	passes  int
	check   func(now int64, decisions []queue.Decision) // nil checks nothing
	arrived func(j *simulated, now int64)               // after the pass of its arrival
	started func(j *simulated, now int64)
}

// An ending is the completion of an attempt. It does not happen if the attempt is preempted before.
type ending struct {
	at      int64
	job     *simulated
	attempt int
}

type ends []ending

func (e ends) Len() int { return len(e) }
func (e ends) Less(i, j int) bool {
	return e[i].at < e[j].at || e[i].at == e[j].at && e[i].job.ID < e[j].job.ID
}
func (e ends) Swap(i, j int) { e[i], e[j] = e[j], e[i] }
func (e *ends) Push(x any)   { *e = append(*e, x.(ending)) }
func (e *ends) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}

// newSimulator returns a simulator of a cluster with the given number of nodes. weights holds the
// weight of each account.
func newSimulator(trace []traceJob, nodes int, weights map[string]int64) *simulator {
	s := &simulator{byID: map[string]*simulated{}, running: map[*simulated]bool{}}
	cluster := make([]queue.Node, nodes)
	for i := range cluster {
		one := queue.Amount{Units: nodeUnits}
		cluster[i] = queue.Node{Type: "GPU", Capacity: one, Free: one}
	}
	var accounts []queue.Account
	for name, weight := range weights {
		accounts = append(accounts, queue.Account{Name: name, Weight: weight, Limit: -1})
	}
	s.queue = queue.New(queue.Default(), cluster, accounts, nil, nil)
	for i, row := range trace {
		j := &simulated{duration: row.duration, gpus: row.gpus, first: -1}
		j.Job = queue.Job{ID: fmt.Sprintf("%06d", i), Account: row.account, Type: "GPU", Nodes: 1,
			Takes: queue.Amount{Units: row.gpus}, Arrival: row.arrival}
		if row.gpus > nodeUnits {
			j.Nodes, j.Takes.Units = (row.gpus+nodeUnits-1)/nodeUnits, nodeUnits
		}
		s.jobs = append(s.jobs, j)
		s.byID[j.ID] = j
	}
	return s
}

// run replays all jobs until the last has ended.
func (s *simulator) run() {
	next, now := 0, int64(0)
	for next < len(s.jobs) || len(s.ends) > 0 {
		waiting := s.queue.Waiting() > 0
		now = s.next(next, now, waiting)
		for len(s.ends) > 0 && s.ends[0].at <= now {
			s.complete(heap.Pop(&s.ends).(ending))
		}
		from := next
		for ; next < len(s.jobs) && s.jobs[next].Arrival <= now; next++ {
			s.queue.Add(&s.jobs[next].Job)
		}
		s.pass(now)
		if s.arrived != nil {
			for _, j := range s.jobs[from:next] {
				s.arrived(j, now)
			}
		}
	}
}

// next returns when the next pass is due.
func (s *simulator) next(arrival int, now int64, waiting bool) int64 {
	at := int64(1) << 62
	if waiting {
		at = (now/period + 1) * period
	}
	if arrival < len(s.jobs) {
		at = min(at, s.jobs[arrival].Arrival)
	}
	for len(s.ends) > 0 && s.ends[0].attempt != s.ends[0].job.attempt {
		heap.Pop(&s.ends)
	}
	if len(s.ends) > 0 {
		at = min(at, s.ends[0].at)
	}
	return at
}

func (s *simulator) complete(e ending) {
	if e.attempt != e.job.attempt {
		return
	}
	e.job.end = e.at
	e.job.attempt++
	s.queue.Remove(e.job.ID)
	delete(s.running, e.job)
}

// pass records the checkpoints of the running jobs, and carries out the decisions of a pass.
func (s *simulator) pass(now int64) {
	for j := range s.running {
		if done := (now - j.began) / checkpoint * checkpoint; done > 0 {
			j.Work, j.Checkpoint = j.before+done, j.began+done
		}
	}
	decisions := s.queue.Pass(now)
	s.passes++
	if s.check != nil {
		s.check(now, decisions)
	}
	for _, d := range decisions {
		for _, victim := range d.Preempt {
			v := s.byID[victim.ID]
			s.lost += v.size() * (max(0, now-v.began) - (v.Work - v.before) + restart)
			v.attempt++
			delete(s.running, v)
		}
		j := s.byID[d.Job.ID]
		j.began, j.before = now, j.Work
		if j.Preemptions > 0 {
			j.began += restart
		}
		j.Start, j.Checkpoint = now, j.began
		j.attempt++
		s.running[j] = true
		if j.first < 0 {
			j.first = now
			if s.started != nil {
				s.started(j, now)
			}
		}
		heap.Push(&s.ends, ending{j.began + j.duration - j.Work, j, j.attempt})
	}
}

func (j *simulated) size() int64 { return j.Nodes * j.Takes.Units }

func (j *simulated) delay() int64 { return j.end - j.Arrival - j.duration }

// A summary is a row of the table.
type summary struct {
	mean, gangs, longest float64 // hours of delay
	lost                 float64 // percent of all units × seconds
	preemptions          int     // of one job
	often                float64 // percent of jobs with more than 3 preemptions
	slowdown             map[string]float64
}

func (s *simulator) summary() summary {
	var sum summary
	var work, gangs float64
	count := map[string]float64{}
	sum.slowdown = map[string]float64{}
	for _, j := range s.jobs {
		delay := float64(j.delay()) / 3600
		sum.mean += delay / float64(len(s.jobs))
		sum.longest = max(sum.longest, delay)
		if j.gpus >= 16 {
			gangs++
			sum.gangs += delay
		}
		sum.preemptions = max(sum.preemptions, j.Preemptions)
		if j.Preemptions > 3 {
			sum.often += 100 / float64(len(s.jobs))
		}
		work += float64(j.gpus * j.duration)
		count[j.Account]++
		sum.slowdown[j.Account] += max(1, float64(j.end-j.Arrival)/float64(max(bound, j.duration)))
	}
	sum.gangs /= max(1, gangs)
	sum.lost = 100 * float64(s.lost) / work
	for account, n := range count {
		sum.slowdown[account] /= n
	}
	return sum
}

// bound is the minimum duration of a job, in seconds, in the slowdown; shorter jobs count as this
// long. Otherwise the short delays of very short jobs would dominate the mean (Feitelson and
// Rudolph, JSSPP 1998).
const bound = 600

// weights returns the weight of each account: 1 if equal is true, otherwise its share of all work
// as a number of nodes, at least one.
func weights(trace []traceJob, nodes int64, equal bool) map[string]int64 {
	w, total := map[string]int64{}, int64(0)
	for _, j := range trace {
		w[j.account] += j.gpus * j.duration
		total += j.gpus * j.duration
	}
	for account, work := range w {
		w[account] = max(1, (nodes*work+total/2)/total)
		if equal {
			w[account] = 1
		}
	}
	return w
}

// fairness returns the largest ratio of an account's mean slowdown in the cluster to its slowdown
// alone on nodes of its share, and the account. An account gets at least the nodes of its largest
// gang.
func fairness(trace []traceJob, nodes int, w map[string]int64, shared summary) (float64, string) {
	var total int64
	for _, weight := range w {
		total += weight
	}
	worst, whose := 0.0, ""
	for account, weight := range w {
		own := slices.DeleteFunc(slices.Clone(trace), func(j traceJob) bool { return j.account != account })
		alone := max(1, (int64(nodes)*weight+total/2)/total)
		for _, j := range own {
			alone = max(alone, (j.gpus+nodeUnits-1)/nodeUnits)
		}
		s := newSimulator(own, int(alone), map[string]int64{account: 1})
		s.run()
		if ratio := shared.slowdown[account] / s.summary().slowdown[account]; ratio > worst {
			worst, whose = ratio, account
		}
	}
	return worst, whose
}

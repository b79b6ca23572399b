package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"syscall"

	"anneal/domain"
)

// maxWorkers is the number of users that each anneal process has for its workers.
const maxWorkers = 32

// maxPrograms is the number of users that each anneal process has for the programs of Runners. If
// there are more programs, they share users.
const maxPrograms = 24

// maxProcessID is one more than the highest process ID of Linux.
const maxProcessID = 1 << 22

// A block is a range of user IDs, of which each anneal process uses its own part.
type block struct {
	first int   // first ID of the range, if the user namespace maps these IDs
	tops  []int // ends of other ranges, used if the user namespace does not map the first one
	each  int   // number of user IDs that each anneal process uses
}

// Ranges of the user IDs of workers and of programs. They are above the IDs that systemd assigns to
// containers, and below 2^31, because some programs fail with larger IDs.
var (
	workerUsers  = block{first: 1_900_000_000, tops: []int{60_000, 30_000}, each: maxWorkers}
	programUsers = block{first: 1_900_000_000 + maxProcessID*maxWorkers, tops: []int{51_000, 21_000}, each: maxPrograms}
)

// users is a pool of users for workers. If this process is root, each worker has its own user, so
// that bubblewrap does not run as root, and the limit of processes applies to each worker.
// Otherwise all workers run as the user of this process.
type users struct {
	free chan user
	err  error
}

// A user is the user and the group with which a worker runs. The ID 0 stands for the user of this
// process. The group can read the code: all users of an evaluation have the group of its first
// user.
type user struct{ id, group int }

func newUsers(n int) users {
	u := users{free: make(chan user, n)}
	first := 0
	if os.Getuid() == 0 {
		if first, u.err = workerUsers.of(os.Getpid()); u.err != nil {
			u.err = unavailable("%w", u.err)
		}
	}
	for i := range n {
		one := user{}
		if first > 0 {
			one = user{first + i, first + i}
		}
		u.free <- one
	}
	return u
}

// of returns the first user ID of an anneal process. In a user namespace with few IDs, processes
// whose IDs are equal modulo 256 share users.
func (b block) of(process int) (first int, err error) {
	mine := process % maxProcessID
	if first = b.first + mine*b.each; mapped(first) && mapped(first+b.each) {
		return first, nil
	}
	for _, top := range b.tops {
		if first = top - mine%256*b.each; mapped(first) && mapped(first+b.each) {
			return first, nil
		}
	}
	return 0, errors.New("anneal runs as root of a user namespace that maps no other users: run it as another user")
}

// mapped reports whether a user ID exists in this user namespace.
func mapped(id int) bool {
	file, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return true // the system has no user namespaces
	}
	defer file.Close()
	for lines := bufio.NewScanner(file); lines.Scan(); {
		var inside, outside, count int
		if _, err := fmt.Sscan(lines.Text(), &inside, &outside, &count); err == nil && id >= inside && id < inside+count {
			return true
		}
	}
	return false
}

func (u users) acquire() (user, error) {
	if u.err != nil {
		return user{}, u.err
	}
	select {
	case one := <-u.free:
		return one, nil
	default:
		return user{}, domain.Errorf(domain.ResourceExhausted,
			"the limit of %d concurrent evaluators on this machine is reached: retry later", cap(u.free))
	}
}

// acquireMore acquires up to n further users, and returns them. It leaves half of all users to
// other evaluations.
func (u users) acquireMore(n, group int) (acquired []user) {
	for len(acquired) < n && len(u.free) > cap(u.free)/2 {
		one, err := u.acquire()
		if err != nil {
			break // another evaluation has acquired the last user
		}
		one.group = group
		acquired = append(acquired, one)
	}
	return acquired
}

func (u users) release(one user) { u.free <- user{one.id, one.id} }

// attributes returns the attributes that start a process as the user, in its own process group.
func (u user) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if u.id > 0 {
		a.Credential = &syscall.Credential{Uid: uint32(u.id), Gid: uint32(u.group)}
	}
	return a
}

// grantRead makes a directory readable by the user. All users can already read its files.
func (u user) grantRead(dir string) error {
	if u.id == 0 {
		return nil
	}
	if err := os.Chown(dir, 0, u.id); err != nil {
		return err
	}
	return os.Chmod(dir, 0o750)
}

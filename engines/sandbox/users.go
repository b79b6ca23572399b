package sandbox

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"syscall"

	"anneal/domain"
)

// mostWorkers is how many users one process of ours has for its workers.
const mostWorkers = 32

// mostProcesses is one more than the highest process ID of Linux.
const mostProcesses = 1 << 22

// A block is a range of user IDs of which each process of ours has some of its own.
type block struct {
	first int   // each process ID has its users from here on, where the user namespace has that many
	tops  []int // ends of ranges that are used where it has few
	each  int   // users of a process
}

// Users begin where nothing else has any: between those that systemd gives to
// containers and the end of what is safe.
var (
	workerUsers = block{first: 1_900_000_000, tops: []int{60_000, 30_000}, each: mostWorkers}
	helperUsers = block{first: 1_900_000_000 + mostProcesses*mostWorkers, tops: []int{51_000, 21_000}, each: mostHelpers}
)

// mostHelpers is how many users a process of ours has for programs of a Runner; the next ones share them.
const mostHelpers = 24

// users gives each worker a user of its own when we are root, so that bubblewrap
// is never started by root, and limits bind. Otherwise all are who we are.
type users struct {
	free chan user
	err  error
}

// A user whom a worker runs as; 0 is who we are. The group may read the code:
// it is the first user's of an evaluation.
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

// of answers the first of the users that no other process of ours gives away. In
// a container that has few users it is one of the last.
func (b block) of(process int) (first int, err error) {
	mine := process % mostProcesses
	if first = b.first + mine*b.each; mapped(first) && mapped(first+b.each) {
		return first, nil
	}
	for _, top := range b.tops {
		if first = top - mine%256*b.each; mapped(first) && mapped(first+b.each) {
			return first, nil
		}
	}
	return 0, errors.New("this program is root of a container that has no other users: start it as a user who is not root")
}

// mapped tells whether a user ID exists in this user namespace.
func mapped(id int) bool {
	file, err := os.Open("/proc/self/uid_map")
	if err != nil {
		return true // no such thing on this system
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

func (u users) take() (user, error) {
	if u.err != nil {
		return user{}, u.err
	}
	select {
	case one := <-u.free:
		return one, nil
	default:
		return user{}, domain.Errorf(domain.ResourceExhausted, "%d evaluators run on this machine, and no more at one time: try again later", cap(u.free))
	}
}

// more takes up to n users whom nobody else is likely to need: half of all are
// left to those who come later.
func (u users) more(n, group int) (taken []user) {
	for len(taken) < n && len(u.free) > cap(u.free)/2 {
		one, err := u.take()
		if err != nil {
			break // somebody was faster
		}
		one.group = group
		taken = append(taken, one)
	}
	return taken
}

func (u users) give(one user) { u.free <- user{one.id, one.id} }

// attributes start a process as the user, in a process group of its own.
func (u user) attributes() *syscall.SysProcAttr {
	a := &syscall.SysProcAttr{Setpgid: true}
	if u.id > 0 {
		a.Credential = &syscall.Credential{Uid: uint32(u.id), Gid: uint32(u.group)}
	}
	return a
}

// mayRead hands a folder that only we can open to the user, for reading.
func (u user) mayRead(dir string) error {
	if u.id == 0 {
		return nil
	}
	if err := os.Chown(dir, 0, u.id); err != nil {
		return err
	}
	return os.Chmod(dir, 0o750)
}

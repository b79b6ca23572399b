package sandbox

// A view is what a sandbox shows of the machine: the system's programs, read-only, an empty /tmp,
// a /proc and /dev of its own, a network that has only its own loopback, and what is named here.
type view struct {
	privileged bool // bubblewrap runs as root and the program changes to its own user; otherwise a user namespace is made
	tmp        int64
	dir        string // working directory
	env        [][2]string
	binds      []bind
	devices    []string
	texts      map[string]int // files that are read from descriptors, by path
}

// A bind is a file or folder of the machine that is shown in a sandbox.
type bind struct {
	from, at string
	write    bool
}

// calls say which system calls a program has beyond those that evaluators have.
type calls struct {
	netlink bool // to list its own interfaces, as servers do
	memory  bool // placement of memory on NUMA nodes, and memory that its own processes share, as accelerators' libraries do
}

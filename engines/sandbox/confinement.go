package sandbox

// A confinement describes a sandbox: read-only system programs, an empty /tmp, private /proc and
// /dev, a network namespace with only a loopback interface, and the following files.
type confinement struct {
	// privileged means that bubblewrap runs as root, and that setpriv changes to the program's user
	// inside the sandbox. Otherwise the sandbox uses a user namespace.
	privileged bool
	tmp        int64  // size of /tmp in bytes
	dir        string // working directory
	env        [][2]string
	binds      []bind
	devices    []string
	texts      map[string]int // descriptors with the contents of generated files, by path
}

// A bind is a bind mount of a file or directory.
type bind struct {
	from, at string
	write    bool
}

// extraCalls are the system calls that a program is allowed in addition to those that an evaluator
// is allowed.
type extraCalls struct {
	netlink bool // list network interfaces, as servers do
	// memory allows memory policies of NUMA nodes and memory shared among the program's
	// processes, which accelerator libraries use.
	memory bool
}

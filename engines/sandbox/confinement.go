package sandbox

// A confinement describes a sandbox: read-only system programs, an empty /tmp, its own /proc and
// /dev, a network namespace with only a loopback interface unless network is true, and the files in
// the following fields.
type confinement struct {
	// privileged reports that bubblewrap runs as root, and that setpriv changes to the program's
	// user in the sandbox. Otherwise the sandbox uses a user namespace.
	privileged bool
	network    bool   // the program uses the network of the machine
	tmp        int64  // size of /tmp in bytes
	dir        string // working directory of the program
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

// extraCalls selects system calls that a program may use although an evaluator may not.
type extraCalls struct {
	netlink bool // allows netlink sockets, with which servers list network interfaces
	// memory allows the calls for memory policies of NUMA nodes, and for memory that the program's
	// processes share. Accelerator libraries use both.
	memory bool
}

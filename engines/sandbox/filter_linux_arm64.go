package sandbox

import "golang.org/x/sys/unix"

// deniedOnArch are denied calls that only some architectures have.
var deniedOnArch = []uint32{unix.SYS_KEXEC_FILE_LOAD, unix.SYS_NFSSERVCTL}

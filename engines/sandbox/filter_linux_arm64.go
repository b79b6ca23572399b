package sandbox

import "golang.org/x/sys/unix"

// deniedHere are calls that only this architecture has.
var deniedHere = []uint32{unix.SYS_KEXEC_FILE_LOAD, unix.SYS_NFSSERVCTL}

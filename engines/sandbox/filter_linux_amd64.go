package sandbox

import "golang.org/x/sys/unix"

// deniedOnArch are denied calls that only some architectures have.
var deniedOnArch = []uint32{
	unix.SYS_IOPL, unix.SYS_IOPERM, unix.SYS_MODIFY_LDT, unix.SYS_KEXEC_FILE_LOAD,
	unix.SYS_USELIB, unix.SYS__SYSCTL, unix.SYS_NFSSERVCTL, unix.SYS_USTAT, unix.SYS_SYSFS,
}

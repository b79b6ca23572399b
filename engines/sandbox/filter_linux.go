//go:build linux && (amd64 || arm64)

package sandbox

import (
	"bytes"
	"encoding/binary"
	"runtime"
	"slices"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Return values of a seccomp filter.
const (
	allow       = 0x7fff0000 // SECCOMP_RET_ALLOW
	killProcess = 0x80000000 // SECCOMP_RET_KILL_PROCESS
	returnError = 0x00050000 // SECCOMP_RET_ERRNO, to which an error number is added
)

// Offsets in the struct seccomp_data of linux/seccomp.h, which the filter reads.
const (
	offsetNumber   = 0
	offsetArch     = 4
	offsetArgument = 16 // lower half of the call's first argument, on little-endian machines
)

const (
	x32        = 1 << 30 // first number of the system calls of the x32 ABI on amd64
	namespaces = unix.CLONE_NEWNS | unix.CLONE_NEWCGROUP | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC |
		unix.CLONE_NEWUSER | unix.CLONE_NEWPID | unix.CLONE_NEWNET
)

// denied are system calls that evaluators do not need, and that were used to escape from sandboxes.
// They concern keys, which have no namespace; kernel subsystems with many vulnerabilities; memory
// and descriptors of other processes; mounts and namespaces; and the machine's clock, modules and
// log.
var denied = []uint32{
	unix.SYS_KEYCTL, unix.SYS_ADD_KEY, unix.SYS_REQUEST_KEY,
	unix.SYS_BPF, unix.SYS_PERF_EVENT_OPEN, unix.SYS_USERFAULTFD,
	unix.SYS_PTRACE, unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_PROCESS_MADVISE,
	unix.SYS_PROCESS_MRELEASE,
	unix.SYS_KCMP, unix.SYS_PIDFD_GETFD, unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_MBIND,
	unix.SYS_SET_MEMPOLICY,
	unix.SYS_MOUNT, unix.SYS_UMOUNT2, unix.SYS_PIVOT_ROOT, unix.SYS_CHROOT, unix.SYS_OPEN_TREE, unix.SYS_MOVE_MOUNT,
	unix.SYS_FSOPEN, unix.SYS_FSCONFIG,
	unix.SYS_FSMOUNT, unix.SYS_FSPICK, unix.SYS_MOUNT_SETATTR, unix.SYS_UNSHARE, unix.SYS_SETNS,
	unix.SYS_NAME_TO_HANDLE_AT, unix.SYS_OPEN_BY_HANDLE_AT, unix.SYS_FANOTIFY_INIT,
	unix.SYS_INIT_MODULE, unix.SYS_FINIT_MODULE, unix.SYS_DELETE_MODULE, unix.SYS_KEXEC_LOAD, unix.SYS_REBOOT,
	unix.SYS_SWAPON, unix.SYS_SWAPOFF,
	unix.SYS_ACCT, unix.SYS_QUOTACTL, unix.SYS_SYSLOG, unix.SYS_PERSONALITY, unix.SYS_VHANGUP, unix.SYS_LOOKUP_DCOOKIE,
	unix.SYS_SETTIMEOFDAY, unix.SYS_CLOCK_SETTIME, unix.SYS_ADJTIMEX, unix.SYS_CLOCK_ADJTIME, unix.SYS_SETHOSTNAME,
	unix.SYS_SETDOMAINNAME,
	unix.SYS_MEMFD_SECRET,
}

// memoryCalls are denied calls that accelerator libraries need. They affect only processes of the
// same user in the same PID namespace.
var memoryCalls = []uint32{
	unix.SYS_PROCESS_VM_READV, unix.SYS_PROCESS_VM_WRITEV, unix.SYS_KCMP, unix.SYS_PIDFD_GETFD,
	unix.SYS_MIGRATE_PAGES, unix.SYS_MOVE_PAGES, unix.SYS_MBIND, unix.SYS_SET_MEMPOLICY,
}

// unimplemented are calls that fail with ENOSYS, so that libraries use other calls. A filter cannot
// check the flags of clone3, which are in memory.
var unimplemented = []uint32{
	unix.SYS_CLONE3, unix.SYS_IO_URING_SETUP, unix.SYS_IO_URING_ENTER, unix.SYS_IO_URING_REGISTER,
}

// families are the address families that the filter allows, because a network namespace isolates
// them, unless Program.Network is true. Other families, such as AF_VSOCK, reach the machine or its
// hypervisor from every namespace.
var families = []uint32{unix.AF_UNIX, unix.AF_INET, unix.AF_INET6}

var architectures = map[string]uint32{"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64}

// filter returns a seccomp filter: a BPF program that the kernel runs for each system call. It also
// allows the calls that more selects.
func filter(more extraCalls) []byte {
	denied, families := denied, families
	if more.memory {
		denied = slices.DeleteFunc(slices.Clone(denied), func(call uint32) bool { return slices.Contains(memoryCalls, call) })
	}
	if more.netlink {
		families = append(slices.Clone(families), unix.AF_NETLINK)
	}
	const deny = returnError | uint32(unix.EPERM)
	load := func(offset uint32) bpf.Instruction { return bpf.LoadAbsolute{Off: offset, Size: 4} }
	ret := func(value uint32) bpf.Instruction { return bpf.RetConstant{Val: value} }
	program := []bpf.Instruction{
		load(offsetArch),
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: architectures[runtime.GOARCH], SkipTrue: 1},
		ret(killProcess),
		load(offsetNumber),
		bpf.JumpIf{Cond: bpf.JumpLessThan, Val: x32, SkipTrue: 1},
		ret(killProcess),
	}
	when := func(call uint32, then ...bpf.Instruction) {
		program = append(program, bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: call, SkipTrue: uint8(len(then))})
		program = append(program, then...)
	}
	for _, call := range slices.Concat(denied, deniedOnArch) {
		when(call, ret(deny))
	}
	for _, call := range unimplemented {
		when(call, ret(returnError|uint32(unix.ENOSYS)))
	}
	when(unix.SYS_CLONE, load(offsetArgument),
		bpf.JumpIf{Cond: bpf.JumpBitsNotSet, Val: namespaces, SkipTrue: 1}, ret(deny), ret(allow))
	for _, call := range []uint32{unix.SYS_SOCKET, unix.SYS_SOCKETPAIR} {
		then := []bpf.Instruction{load(offsetArgument)}
		for i, family := range families {
			then = append(then, bpf.JumpIf{Cond: bpf.JumpEqual, Val: family, SkipTrue: uint8(len(families) - i)})
		}
		when(call, append(then, ret(deny), ret(allow))...)
	}
	program = append(program, ret(allow))
	return assemble(program)
}

// assemble encodes a BPF program as an array of struct sock_filter.
func assemble(program []bpf.Instruction) []byte {
	raw, err := bpf.Assemble(program)
	if err != nil {
		panic("sandbox: assemble the seccomp filter: " + err.Error()) // unreachable: the program has no inputs
	}
	var out bytes.Buffer
	for _, one := range raw {
		_ = binary.Write(&out, binary.NativeEndian, struct {
			Code   uint16
			Jt, Jf uint8
			K      uint32
		}{one.Op, one.Jt, one.Jf, one.K})
	}
	return out.Bytes()
}

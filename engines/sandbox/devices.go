package sandbox

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"
)

// acceleratorFiles are patterns of the device files of NVIDIA's and AMD's accelerators. /dev/dri
// has the render devices of both.
var acceleratorFiles = []string{"/dev/nvidia*", "/dev/nvidia-caps/*", "/dev/kfd", "/dev/dri"}

// accelerators returns the device files of this machine's accelerators, and the groups that own the
// files which only some users can open.
func accelerators() (files, groups []string) {
	for _, pattern := range acceleratorFiles {
		found, _ := filepath.Glob(pattern) // cannot fail, because the patterns are constants
		for _, path := range found {
			info, err := os.Stat(path)
			if err != nil || info.IsDir() && path != "/dev/dri" {
				continue
			}
			files = append(files, path)
			_ = filepath.WalkDir(path, func(path string, entry fs.DirEntry, err error) error {
				if err != nil || entry.IsDir() {
					return nil
				}
				if info, err := os.Stat(path); err == nil && info.Mode()&0o006 != 0o006 {
					if owner, ok := info.Sys().(*syscall.Stat_t); ok && owner.Gid != 0 {
						groups = append(groups, fmt.Sprint(owner.Gid))
					}
				}
				return nil
			})
		}
	}
	slices.Sort(groups)
	return files, slices.Compact(groups)
}

package sandbox

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// inSystemDir reports whether a path is in a directory that every sandbox has.
func inSystemDir(path string) bool {
	for _, dir := range []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64"} {
		if path == dir || strings.HasPrefix(path, dir+"/") {
			return true
		}
	}
	return false
}

// softwareDirs returns the directories that a program needs besides the system's: the directory or
// the Python environment of the program, of its interpreter, and of the targets of symbolic links.
func softwareDirs(program string) (dirs []string) {
	path, err := exec.LookPath(program)
	seen := map[string]bool{}
	for queue := []string{path}; err == nil && len(queue) > 0; queue = queue[1:] {
		path := queue[0]
		if path, err = filepath.Abs(path); err != nil || seen[path] || inSystemDir(path) {
			continue
		}
		seen[path] = true
		dirs = append(dirs, softwareDir(path))
		if config, err := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(path)), "pyvenv.cfg")); err == nil {
			for line := range strings.Lines(string(config)) {
				if key, home, _ := strings.Cut(line, "="); strings.TrimSpace(key) == "home" {
					queue = append(queue, filepath.Join(strings.TrimSpace(home), "python3"))
				}
			}
		}
		if target, err := os.Readlink(path); err == nil {
			if !filepath.IsAbs(target) {
				target = filepath.Join(filepath.Dir(path), target)
			}
			queue = append(queue, target)
		} else if interpreter := interpreterOf(path); interpreter != "" {
			queue = append(queue, interpreter)
		}
	}
	return dirs
}

// softwareDir returns the Python environment of a program, or else its directory. If the directory
// also has unrelated files, as a home directory has, it returns only the program.
func softwareDir(path string) string {
	dir := filepath.Dir(path)
	if above := filepath.Dir(dir); filepath.Base(dir) == "bin" {
		// Cannot fail, because the pattern is a constant.
		libraries, _ := filepath.Glob(filepath.Join(above, "lib", "python3*"))
		if _, err := os.Stat(filepath.Join(above, "pyvenv.cfg")); err == nil || len(libraries) > 0 &&
			filepath.Base(above) != ".local" {
			return above
		}
	}
	if home, err := os.UserHomeDir(); err != nil || dir == "/" || dir == os.TempDir() ||
		strings.HasPrefix(home+"/", dir+"/") {
		return path
	}
	return dir
}

// interpreterOf returns the interpreter in the #! line of a script; "" if there is none.
func interpreterOf(path string) string {
	file, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer file.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(file, head)
	line, _, _ := bytes.Cut(head[:n], []byte("\n"))
	words := strings.Fields(strings.TrimPrefix(string(line), "#!"))
	if !bytes.HasPrefix(line, []byte("#!")) || len(words) == 0 {
		return ""
	}
	if filepath.Base(words[0]) == "env" && len(words) > 1 {
		if found, err := exec.LookPath(words[len(words)-1]); err == nil {
			return found
		}
	}
	return words[0]
}

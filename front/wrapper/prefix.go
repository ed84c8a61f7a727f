package wrapper

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"

	"hpcc/runtime/runconf"
)

// findPrefixes starts the wrappers of Python interpreters, and makes those work whose library Python
// does not find. Python looks for it above its argv[0], and then in a directory that was set when
// Python was compiled. If that is not the interpreter's prefix, DIR gets links to the directories of
// the prefix, which lead to them inside the container. notes names the interpreters that do not work.
func findPrefixes(ctx context.Context, tree string, programs []program, o Options) (notes []string, err error) {
	for _, p := range programs {
		if p.argv0 != runconf.WrapperName {
			continue
		}
		real, err := resolve(tree, p.argv[0])
		if err != nil {
			return nil, fmt.Errorf("looking for the library of %s: %w", p.argv[0], err)
		}
		prefix := path.Dir(path.Dir(path.Join("/", strings.TrimPrefix(real, filepath.Clean(tree)))))
		found, err := findPrefix(ctx, p, o)
		if err == nil && found != prefix && found != o.Dir {
			if err = link(tree, prefix, o.Dir); err != nil {
				return nil, fmt.Errorf("linking the library of %s: %w", p.Name, err)
			}
			found, err = findPrefix(ctx, p, o)
		}
		if err == nil && found != prefix && found != o.Dir {
			err = fmt.Errorf("it uses the library in %q instead of %s", found, prefix)
		}
		if err != nil {
			notes = append(notes, fmt.Sprintf("%s does not work: %v", filepath.Join(o.Dir, "bin", p.Name), err))
		}
	}
	return notes, nil
}

// findPrefix returns the prefix that a wrapped Python interpreter finds, or "" if it finds none.
func findPrefix(ctx context.Context, p program, o Options) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(o.Dir, "bin", p.Name), "-E", "-S", "-c", "import sys; print(sys.prefix)")
	out, err := cmd.Output()
	if exit, ok := err.(*exec.ExitError); ok {
		message, _, _ := strings.Cut(strings.TrimSpace(string(exit.Stderr)), "\n")
		if exit.ExitCode() == 125 { // hpcc failed
			return "", errors.New(strings.TrimPrefix(message, "hpcc: error: "))
		}
		return "", nil
	}
	return strings.TrimSpace(string(out)), err
}

// link links the directories of prefix, except bin, in dir.
func link(tree, prefix, dir string) error {
	real, err := resolve(tree, prefix)
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(real)
	if err != nil {
		return err
	}
	for _, e := range entries {
		name := filepath.Join(dir, e.Name())
		if _, err := os.Lstat(name); err == nil || e.Name() == "bin" || !e.IsDir() {
			continue
		}
		if err := os.Symlink(path.Join(prefix, e.Name()), name); err != nil {
			return err
		}
	}
	return nil
}

package devices

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// A launcher of the host (srun, mpirun) starts "hpcc run" once for each rank. Pids, network
// and shared memory are the host's, and descriptors are inherited. An MPI in the image that
// supports the launcher's PMI therefore needs only the launcher's files: profile "pmix".
// Profile "host" replaces the image's MPI library with the host's, which must have the same
// ABI.

// fabricNodes belong to networks that MPI libraries drive directly: InfiniBand, Slingshot,
// Omni-Path, Aries, and memory shared between processes.
var fabricNodes = strings.Fields("infiniband/* cxi[0-9]* hfi[0-9]* hfi1_[0-9]* kgni[0-9]* xpmem knem hugepages gdrdrv")

// launcherVariables are environment variables that name directories of launchers.
var launcherVariables = strings.Fields("PMIX_SERVER_TMPDIR PMIX_SYSTEM_TMPDIR PRTE_SESSION_DIR OMPI_MCA_orte_tmpdir_base PMI_SPOOL_DIR")

// launcherDirs are directories of launchers that no variable names: the spool directory of
// slurmd with the sockets of Slurm's PMIx plugin, and that of Cray's PALS.
var launcherDirs = strings.Fields("/var/spool/slurmd /var/spool/slurm /var/run/palsd /run/munge")

// checkProfile returns an error for an unknown MPI profile.
func checkProfile(profile string) error {
	if profile == "" || profile == "pmix" || profile == "host" {
		return nil
	}
	return fmt.Errorf("there is no MPI profile %q; use pmix (the image's own MPI, started by the host's launcher) or host (the host's MPI library instead of the image's)", profile)
}

// addMPI adds an MPI profile to the run.
func (h *hardware) addMPI(profile string) error {
	if err := checkProfile(profile); err != nil || profile == "" {
		return err
	}
	h.addNodes("", fabricNodes)
	for _, name := range launcherVariables {
		if p := os.Getenv(name); isMountPoint(p) && exists(p) {
			h.addBind(filepath.Clean(p), filepath.Clean(p))
		}
	}
	for _, p := range launcherDirs {
		if exists(p) {
			h.addBind(p, p)
		}
	}
	if profile == "host" {
		return h.addHostMPI()
	}
	return nil
}

// libcParts are the libraries of the C library. They come from the image, because a process
// cannot use two C libraries.
var libcParts = strings.Fields("libc libm libpthread libdl librt libutil libresolv libnsl libanl ld-linux-x86-64 ld-linux-aarch64 ld64")

// hostMPIVariables name directories of the host's MPI. Other runs drop them, because they mislead the
// image's MPI.
var hostMPIVariables = strings.Fields("FI_PROVIDER_PATH I_MPI_ROOT OPAL_PREFIX")

// maxClosure bounds the number of dependencies of one library. Real MPI libraries have about
// fifty.
const maxClosure = 500

// addHostMPI gives the run the MPI library that the host's own programs would load, with all
// its dependencies except the C library.
func (h *hardware) addHostMPI() error {
	f, err := openHost("")
	if err != nil {
		h.note("%v", err)
	}
	byName, mpi := f.loadable(h.arch, "libmpi.so.")
	if mpi == "" {
		return errors.New("the host has no libmpi.so in LD_LIBRARY_PATH, the loader's cache or the usual directories; load its module first (module load openmpi), or use --mpi pmix with an MPI in the image")
	}
	file := byName[mpi]
	if err := h.addClosure(mpi, byName); err != nil {
		return fmt.Errorf("adding the host's MPI (%s): %w; build the MPI into the image and use --mpi pmix", file, err)
	}
	for _, dir := range h.addPlugins(file) {
		h.addNeedsOf(dir, byName)
	}
	for _, name := range hostMPIVariables {
		if v := os.Getenv(name); v != "" {
			h.setEnv(name, v)
		}
	}
	return nil
}

// loadable maps library names to the files that the loader would use, from the caller's
// LD_LIBRARY_PATH, the loader's cache and the usual directories. first is the first name in
// that order that consists of prefix and a single number.
func (f *hostFiles) loadable(arch, prefix string) (byName map[string]string, first string) {
	byName = map[string]string{}
	add := func(name, file string) {
		if _, ok := byName[name]; !ok {
			byName[name] = file
		}
		if v, ok := strings.CutPrefix(name, prefix); ok && first == "" && v != "" && strings.Trim(v, "0123456789") == "" {
			first = name
		}
	}
	scan := func(dirs []string) {
		for _, dir := range dirs {
			names, _ := readNames(f.path(dir)) // most of these directories do not exist
			for _, n := range names {
				add(n, f.path(filepath.Join(dir, n)))
			}
		}
	}
	scan(f.callerDirs())
	for _, n := range slices.Sorted(maps.Keys(f.cache)) {
		add(n, f.path(f.cache[n][0]))
	}
	scan(usualDirs(arch))
	return byName, first
}

// addClosure adds a library and all its dependencies.
func (h *hardware) addClosure(name string, byName map[string]string) error {
	todo := []string{name}
	seen := map[string]bool{name: true}
	real := byName[name]
	if resolved, err := filepath.EvalSymlinks(real); err == nil {
		real = resolved
	}
	libDir := filepath.Dir(real)
	for len(todo) > 0 {
		n := todo[0]
		todo = todo[1:]
		file, ok := byName[n]
		if !ok {
			file = filepath.Join(libDir, n) // found through the RPATH of the first library
		}
		if !exists(file) {
			return fmt.Errorf("dependency %s was not found", n)
		}
		so, err := h.addLibrary(n, file)
		if err != nil {
			return err
		}
		for _, d := range so.needed {
			stem, _, _ := strings.Cut(d, ".so")
			if seen[d] || slices.Contains(libcParts, stem) {
				continue
			}
			seen[d] = true
			todo = append(todo, d)
		}
		if len(seen) > maxClosure {
			return fmt.Errorf("it needs more than %d libraries", maxClosure)
		}
	}
	return nil
}

// addPlugins adds the components and help texts that Open MPI and PMIx load by path. It
// returns the directories with the components. If MPI has its own installation prefix, it adds
// the entire prefix.
func (h *hardware) addPlugins(lib string) []string {
	real, err := filepath.EvalSymlinks(lib)
	if err != nil {
		real = lib
	}
	dir := filepath.Dir(real)
	if prefix := filepath.Dir(dir); prefix != "/" && prefix != "/usr" && prefix != "/usr/lib" && prefix != "/usr/local" {
		h.addBind(prefix, prefix, "ro")
		return []string{dir}
	}
	var bound []string
	for _, p := range []string{dir + "/openmpi", dir + "/pmix2", "/usr/share/openmpi", "/usr/share/pmix2", "/etc/openmpi"} {
		if isDir(p) && !h.inImage(p) {
			h.addBind(p, p, "ro")
			bound = append(bound, p)
		}
	}
	return bound
}

// maxComponents bounds the number of files and directories that are examined. Open MPI has
// about two hundred components.
const maxComponents = 5000

// addNeedsOf adds the dependencies of the components in a directory. A component whose
// dependencies the host lacks does not load on the host either.
func (h *hardware) addNeedsOf(dir string, byName map[string]string) {
	remaining := maxComponents
	_ = filepath.WalkDir(dir, func(p string, e fs.DirEntry, err error) error {
		if remaining--; err != nil || remaining < 0 {
			return filepath.SkipAll
		}
		if !e.Type().IsRegular() || filepath.Ext(p) != ".so" {
			return nil
		}
		so, err := readShared(p, h.arch)
		if err != nil {
			return nil
		}
		for _, n := range so.needed {
			stem, _, _ := strings.Cut(n, ".so")
			if h.libs[n] == "" && byName[n] != "" && !slices.Contains(libcParts, stem) {
				_ = h.addClosure(n, byName)
			}
		}
		return nil
	})
}

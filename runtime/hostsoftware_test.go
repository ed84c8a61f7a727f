package runtime

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"hpcc/envfile"
	"hpcc/testdata/helpers/testenv"
)

// TestHostSoftwareTables checks that the tables are sorted, which the search requires, and that no
// entry repeats another.
func TestHostSoftwareTables(t *testing.T) {
	for _, table := range [][]string{packageVariables[:], fileVariables[:]} {
		if !slices.IsSorted(table) {
			t.Errorf("not sorted: %q", table)
		}
		for i, entry := range table {
			rest := slices.Delete(slices.Clone(table), i, i+1)
			if name := strings.Replace(entry, "*", "X", 1); !matchesEntry(table, name) || matchesEntry(rest, name) {
				t.Errorf("%s: its name %s matches no entry, or another one", entry, name)
			}
		}
	}
	for _, name := range strings.Fields("PATH HOME LANG LC_ALL TZ LD CC CFLAGS ENV EDITOR OMP_NUM_THREADS MKL_NUM_THREADS CUDA_VISIBLE_DEVICES CUDA_CACHE_PATH NCCL_DEBUG SLURM_JOB_ID " +
		"PMI_FD PMIX_RANK OMPI_MCA_btl I_MPI_FABRICS FI_PROVIDER UCX_TLS WANDB_API_KEY HF_HOME http_proxy NO_PROXY SSL_CERT_FILE REQUESTS_CA_BUNDLE PIP_INDEX_URL UV_CACHE_DIR CARGO_HOME GOPATH " +
		"PYTHONUNBUFFERED PYTHONHASHSEED PYTHONWARNINGS PYTHONDONTWRITEBYTECODE R_MAX_VSIZE JULIA_NUM_THREADS NODE_ENV MPLBACKEND XDG_CACHE_HOME XDG_DATA_HOME XDG_RUNTIME_DIR DISPLAY BASH_FUNC_mine%% " +
		"CONDA LMOD MODULE LUA R_LIB A Z zz _ HPCC_STORE HPCC_TASK_ID HPCC_TASK_DIR") {
		if !PassesVariable(name, false, false) {
			t.Errorf("%s does not reach the program", name)
		}
	}
}

// TestHostSoftwareDocs compares the tables with those of docs/run.md.
func TestHostSoftwareDocs(t *testing.T) {
	page, err := os.ReadFile("../docs/run.md")
	testenv.Check(t, err)
	_, section, _ := strings.Cut(string(page), "### Variables that stay out\n")
	section, _, _ = strings.Cut(section, "\n### ")
	first, second, _ := strings.Cut(section, "With `--only`")
	for _, c := range []struct {
		text  string
		table []string
	}{{first, packageVariables[:]}, {second, fileVariables[:]}} {
		var listed []string
		for _, row := range regexp.MustCompile(`(?m)^\|[^|]*\|(.*)\|$`).FindAllStringSubmatch(c.text, -1) {
			for _, name := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(row[1], -1) {
				listed = append(listed, name[1])
			}
		}
		if slices.Sort(listed); !slices.Equal(listed, c.table) {
			t.Errorf("docs/run.md lists %q; want %q", listed, c.table)
		}
	}
}

// TestCallerEnv checks which of the caller's variables a program sees.
func TestCallerEnv(t *testing.T) {
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		t.Setenv(name, value) // restores it
		os.Unsetenv(name)
	}
	for _, name := range strings.Fields("PYTHONPATH PYTHONNOUSERSITE R_LIBS_USER CONDA_PREFIX LD_LIBRARY_PATH LD_PRELOAD MODULEPATH A USER") {
		t.Setenv(name, "host")
	}
	const switches = "PYTHONNOUSERSITE=1 R_LIBS_USER=NULL"
	const all = "A=host CONDA_PREFIX=host LD_LIBRARY_PATH=host LD_PRELOAD=host MODULEPATH=host PYTHONNOUSERSITE=host PYTHONPATH=host R_LIBS_USER=host USER=host"
	for _, c := range []struct {
		name    string
		o       Options
		hasHome bool
		want    string
	}{
		{"usual", Options{}, true, "A=host " + switches + " USER=host"},
		{"without a home", Options{}, false, "A=host PYTHONNOUSERSITE=host USER=host"},
		{"over the host's files", Options{Only: "/opt/conda"}, true, "A=host LD_LIBRARY_PATH=host LD_PRELOAD=host MODULEPATH=host " + switches + " USER=host"},
		{"a clean environment", Options{CleanEnv: true}, true, switches + " USER=host"},
		{"apptainer", Options{Apptainer: true}, true, strings.Replace(all, "LD_LIBRARY_PATH=host ", "", 1)},
		{"ch-run", Options{ChRun: true}, true, all},
	} {
		got := callerEnv(c.o, c.hasHome)
		slices.Sort(got)
		if text := strings.Join(got, " "); text != c.want {
			t.Errorf("%s: the program sees %s; want %s", c.name, text, c.want)
		}
	}
	// The image's variables win.
	image := ImageConfig{Env: []string{"PYTHONNOUSERSITE=", "R_LIBS_USER=/opt/r", "PYTHONPATH=/opt/py"}}
	env := environment(callerEnv(Options{}, true), image, t.TempDir(), "/home/me", nil)
	for _, kv := range image.Env {
		if name, value, _ := strings.Cut(kv, "="); envfile.Lookup(env, name) != value || !slices.Contains(env, kv) {
			t.Errorf("%s of the image is not in %q", kv, env)
		}
	}
}

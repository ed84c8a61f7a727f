package exports

import (
	"fmt"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

// TestRealFiles reads the smallest files of public repositories that show a defect which hpcc had:
// testdata/corpora/environments.txt lists their repositories.
func TestRealFiles(t *testing.T) {
	t.Chdir("testdata/real")
	for _, c := range []struct {
		file string
		want string   // numbers of entries, specs and pip packages; or the error
		has  []string // entries, specs, pip packages and notes
	}{
		// PowerShell: pip freeze > requirements.txt
		{"requirements-utf16.txt", "0 entries, 0 specs, 8 pip", []string{"pip matplotlib==3.10.0"}},
		// 1kastner/ml-potentials-and-risks, British-Oceanographic-Data-Centre/COAsT
		{"extras.yml", "0 entries, 15 specs, 0 pip", []string{"spec python-lsp-server", `note extras.yml:11: python-lsp-server[all]: conda packages have no extras; [all] is not used`}},
		{"extras.txt", "0 entries, 18 specs, 0 pip", []string{"spec dask>=2022.3.0", "note extras.txt:3: dask[complete]: conda packages have no extras; [complete] is not used"}},
		// mamba-org/mamba
		{"build-after-range.yml", "0 entries, 30 specs, 0 pip", []string{"spec libarchive-minimal-static>=3.8 lgpl_*"}},
		// mamba-org/mamba
		{"blanks.yml", "0 entries, 4 specs, 0 pip", []string{"spec python > 3.11", "spec scipy   >=    1.5.0,  < 2.0.0"}},
		// iamvigneshwars/NoStripesNet
		{"brackets.yml", "0 entries, 17 specs, 0 pip", []string{"spec h5py[build=*openmpi*]", "spec astra-toolbox::astra-toolbox"}},
		// conda/conda
		{"requirements-channel.txt", "0 entries, 2 specs, 0 pip", []string{"spec boto3 !=1.33.0", "spec conda-forge::minio-server"}},
		// AveryWenwenSi/invariance-so3
		{"epoch.txt", "133 entries, 0 specs, 5 pip", []string{"entry x264=1!161.3030=h7f98852_1"}},
		// ECP-WarpX/WarpX
		{"requirements_mpi.txt", "0 entries, 0 specs, 4 pip", []string{"pip numpy>=1.15", "pip periodictable~=1.5", "pip mpi4py>=2.1.0"}},
		// Courses-VU/ML4QS
		{"duplicate.txt", "9 entries, 0 specs, 0 pip", []string{"entry statsmodels=0.6.1", "note duplicate.txt:6: statsmodels=0.6.1 is already in line 4 and is left out"}},
		// CINPLA/cinpla-base
		{"requirements-options.txt", "0 entries, 0 specs, 10 pip", []string{"pip spyking-circus==0.9.6", "note requirements-options.txt:19: spyking-circus==0.9.6: --no-binary=mpi4py is not used"}},
		// Abhiswain97/Leaf_disease_detection
		{"requirements-merge-conflict.txt", "requirements-merge-conflict.txt:1: the file has an unresolved merge conflict: keep the rows of one side, and remove the lines with <<<<<<<, ======= and >>>>>>>", nil},
		// LiuShenLan/uav_dronet
		{"commands.txt", `commands.txt:1: the row is a shell command, not a package: run the commands, and write the environment with "conda list -e"`, nil},
		// pydata/xarray
		{"template.yml", "template.yml:7: the file is a template: fill in its placeholders, {{…}} or {%…%}, and use the result", nil},
	} {
		e, err := ReadFile(c.file, ReadOptions{Subdir: "linux-64"})
		if err != nil {
			if err.Error() != c.want {
				t.Errorf("%s: %v; want %s", c.file, err, c.want)
			}
			continue
		}
		if got := fmt.Sprintf("%d entries, %d specs, %d pip", len(e.Entries), len(e.Specs), len(e.Pip)); got != c.want {
			t.Errorf("%s: %s; want %s", c.file, got, c.want)
		}
		content := realContent(e)
		for _, row := range c.has {
			if !strings.Contains(content, row+"\n") {
				t.Errorf("%s: no row %q in\n%s", c.file, row, content)
			}
		}
	}
}

// realContent lists the rows of an export.
func realContent(e *Export) string {
	var b strings.Builder
	for _, x := range e.Entries {
		fmt.Fprintln(&b, "entry", x)
	}
	for _, x := range e.Specs {
		fmt.Fprintln(&b, "spec", x.Text)
	}
	for _, x := range e.Pip {
		fmt.Fprintln(&b, "pip", x)
	}
	for _, n := range e.Notes {
		fmt.Fprintln(&b, "note", n)
	}
	return b.String()
}

// TestConflictingDuplicates refuses two rows of one package that differ.
func TestConflictingDuplicates(t *testing.T) {
	for _, in := range []string{"a==1\na==2\n", "a=1=b_0\na=1=b_1\n", "x::a=1=b\ny::a=1=b\n"} {
		if e, err := Read(strings.NewReader(in), "list.txt", ReadOptions{}); err == nil || !strings.Contains(err.Error(), "list.txt:2: duplicate package a, already in line 1") {
			t.Errorf("Read(%q) = %v, %v; want the duplicate refused", in, e, err)
		}
	}
}

// TestCondaLockChannelNames reads the channels of lock files that conda-lock wrote as names.
func TestCondaLockChannelNames(t *testing.T) {
	const in = "version: 1\nmetadata:\n  channels:\n  - conda-forge\n  - url: bioconda\n    used_env_vars: []\npackage:\n" +
		"- name: bzip2\n  version: 1.0.8\n  manager: conda\n  platform: linux-64\n  url: https://conda.example/linux-64/bzip2-1.0.8-h5eee18b_6.conda\n"
	e, err := Read(strings.NewReader(in), "conda-lock.yml", ReadOptions{})
	testenv.Check(t, err)
	if got := strings.Join(e.Channels, " "); got != "conda-forge bioconda" {
		t.Errorf("channels = %q; want conda-forge bioconda", got)
	}
}

// TestLockedSources keeps directories and repositories of a lock file for another platform, and
// looks up wheels by version.
func TestLockedSources(t *testing.T) {
	const row = "- name: x\n  version: '1'\n  manager: pip\n  platform: linux-64\n  url: "
	for url, want := range map[string]string{
		"file:///home/me/x":                  "x @ file:///home/me/x",
		"git+https://e.example/x@0123abc":    "x @ git+https://e.example/x@0123abc",
		"https://e.example/x-1.tar.gz":       "x @ https://e.example/x-1.tar.gz",
		"https://e.example/x-1-cp39-a-b.whl": "x==1",
	} {
		e, err := Read(strings.NewReader("version: 1\npackage:\n"+row+url+"\n"), "conda-lock.yml", ReadOptions{Subdir: "linux-ppc64le"})
		testenv.Check(t, err)
		if got := e.Pip[0].String(); got != want {
			t.Errorf("%s: read as %s; want %s", url, got, want)
		}
	}
}

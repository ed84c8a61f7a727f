package conda

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
)

// activated returns an activation of an environment with a few files.
func activated() *activation {
	kinds := map[string]fileKind{"share/gdal": directory, "share/gdal/x.csv": regularFile, "ssl": directory, "ssl/cacert.pem": regularFile, "lib64": symbolicLink}
	return &activation{prefix: "/opt/conda", is: func(p string) fileKind { return kinds[p] }, exported: map[string]bool{"CONDA_PREFIX": true, "PATH": true},
		vars: map[string]string{"CONDA_PREFIX": "/opt/conda", "PATH": "/opt/conda/bin:" + restOfPath}}
}

// got lists the exported variables that a script has set or changed.
func (a *activation) got() string {
	was := activated()
	var out []string
	for _, k := range slices.Sorted(maps.Keys(a.exported)) {
		if v, ok := a.vars[k]; ok && v != was.vars[k] {
			out = append(out, k+"="+strings.ReplaceAll(v, restOfPath, "REST"))
		}
	}
	return strings.Join(out, " ")
}

func TestActivate(t *testing.T) {
	for script, want := range map[string]string{
		"export A=1\nB=2\nexport B\nC=3\n":                                            "A=1 B=2",
		`export A="${CONDA_PREFIX}/share/x"`:                                          "A=/opt/conda/share/x",
		"if [ -n \"$OLD\" ]; then export S=$OLD; fi\nexport A=${OLD:-none}${OLD+set}": "A=none",
		"if [[ -d \"$CONDA_PREFIX/share/gdal\" ]]; then export A=$CONDA_PREFIX/share/gdal; elif [ -d $CONDA_PREFIX/Library ]; then export A=w; fi": "A=/opt/conda/share/gdal",
		"if [ -d $CONDA_PREFIX/Library ]; then export A=w; else export A=e; fi":                                                                    "A=e",
		"test -f $CONDA_PREFIX/ssl/cacert.pem && export A=yes\n[ -e /opt/conda/nosuch ] || export B=no\n! [ -f /opt/conda/ssl ] && export C=dir":   "A=yes B=no C=dir",
		"[[ \"${SSL_CERT_FILE:-}\" == \"\" ]] && export SSL_CERT_FILE=$CONDA_PREFIX/ssl/cacert.pem":                                                "SSL_CERT_FILE=/opt/conda/ssl/cacert.pem",
		"export PATH=$CONDA_PREFIX/x/bin:$PATH":                                                      "PATH=/opt/conda/x/bin:/opt/conda/bin:REST",
		"for v in A B; do export LAST=$v; done":                                                      "LAST=B",
		"case $CONDA_PREFIX in /usr*) export A=1;; /opt/* | x) export A=2;; *) export A=3;; esac":    "A=2",
		"[[ $CONDA_PREFIX == /opt* ]] && export A=1; [[ $CONDA_PREFIX == \"/opt*\" ]] && export B=1": "A=1",
		"export A=1; return 0; export A=2":                                                           "A=1",
		"set -eu; export A=x; set +e; A+=y; unset B; : ; true":                                       "A=xy",
		"unset CONDA_PREFIX": "",
		"[ \"$A\" = \"\" ] && { export A=1; } >/dev/null 2>&1":                                    "A=1",
		"[[ ! ( -z $CONDA_PREFIX || -v NOPE ) ]] && export A=${CONDA_PREFIX##*/}${#CONDA_PREFIX}": "A=conda10",
		"export A='$HOME *'": "A=$HOME *",
		"if false; then R CMD x; export A=$(x); fi; f() { sed x; }": "line 1 has an unsupported statement",
	} {
		a := activated()
		got := ""
		if err := a.source(script); err != nil {
			got = err.Error()
		} else {
			got = a.got()
		}
		if got != want && !(strings.HasPrefix(want, "line") && strings.HasPrefix(got, want)) {
			t.Errorf("%s\nsets %q; want %q", script, got, want)
		}
	}
}

// TestActivateBeyond reports unsupported commands with their line, and changes no variable.
func TestActivateBeyond(t *testing.T) {
	for script, want := range map[string]string{
		"sed x":                                `runs "sed"`,
		"export B=$(uname)":                    "has a command substitution",
		"export B=`uname`":                     "has a command substitution",
		"export B=$HOME/x":                     "reads $HOME, which is only known at run time",
		"export B=~/x":                         "which is only known at run time",
		"export B=$1":                          "which is only known at run time",
		"export B=$((1 << 70))":                "computes",
		"export B=${A//x/$A}":                  "has an unsupported expansion",
		"export B=${!A}":                       "has an unsupported expansion",
		"x=(1 2 3)":                            "has an array",
		"export PATH=$PATH:/x":                 "appends to the image's PATH",
		"export PATH=/x":                       "appends to the image's PATH",
		"export OLD=$PATH":                     "saves PATH in OLD",
		"[ -d /usr/share ] && export B=1":      "which is outside of the environment",
		"[ -d $CONDA_PREFIX/lib64 ]":           `follows the link "lib64"`,
		"[ -f /opt/conda/lib64/x ] || :":       `follows the link "lib64"`,
		"[ -d ../share ] && export B=1":        "which is outside of the environment",
		"[ -x /opt/conda/bin/x ]":              `unsupported test "-x"`,
		"[ 1 -lt 2 ]":                          "has a test with",
		"[[ 1 -lt 2 ]]":                        "unsupported test",
		"[[ $A =~ x ]]":                        "unsupported test",
		"echo x >/etc/passwd":                  "opens a file",
		"cat <<E\nx\nE":                        "opens a file",
		"true | true":                          "has a pipe",
		"true &":                               "starts a process",
		"while true; do :; done":               "has an unsupported statement",
		"for ((;;)); do :; done":               "loops over numbers",
		"for a; do :; done":                    "loops over numbers or arguments",
		"eval export B=1":                      `runs "eval"`,
		". /etc/profile":                       `runs "."`,
		"declare -x B=1":                       `is "declare"`,
		"export -n A":                          "has flags of export",
		"for i in {1..1000000000}; do :; done": "has a brace expansion",
		"for i in /opt/conda/*; do :; done":    "expands a file name pattern",
		"if":                                   "2:1",
		"A=x" + strings.Repeat("\nA=$A$A", 40): "gives A",
		"for a in " + strings.Repeat("x ", 200) + "; do for b in " + strings.Repeat("x ", 200) + "; do :; done; done": "exceeds the limit: step 10001",
		"export B=" + strings.Repeat("$A", 100): "has 100 variables",
		strings.Repeat("#", maxActivation+1):    "bytes",
	} {
		a := activated()
		err := a.source("export A=1\n" + script)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60s\nerror %v; want %q", script, err, want)
		}
		if got := a.got(); got != "" || len(a.vars) != 2 {
			t.Errorf("%.60s\nsets %q in spite of the error", script, got)
		}
	}
}

// FuzzActivate runs any script: it ends soon, with variables or an error.
func FuzzActivate(f *testing.F) {
	f.Add("export A=${B:-x}\nif [[ -d $CONDA_PREFIX/share ]]; then A+=1; fi")
	f.Add("for a in x y; do case $a in x*) export B=$a;; esac; done")
	f.Add("export PATH=$CONDA_PREFIX/x:$PATH; unset A; [ ! -n \"$A\" ] || return")
	f.Fuzz(func(t *testing.T, script string) {
		a := activated()
		before := fmt.Sprint(a.vars, a.exported)
		if err := a.source(script); err != nil && fmt.Sprint(a.vars, a.exported) != before {
			t.Errorf("an error leaves %v", a.vars)
		}
		for k, v := range a.vars {
			if len(v) > maxValue {
				t.Errorf("%s has %d bytes", k, len(v))
			}
		}
	})
}

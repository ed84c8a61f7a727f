package conda

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"hpcc/testdata/helpers/testenv"
)

func TestCondarc(t *testing.T) {
	home := t.TempDir()
	extra := filepath.Join(t.TempDir(), "rc")
	env := map[string]string{"HOME": home, "CONDARC": extra, "TOKEN": "t0ken"}
	testenv.Write(t, filepath.Join(home, ".condarc"), []byte(`
channels: [conda-forge, defaults]
channel_alias: https://overridden.example/
custom_channels:
  conda-forge: https://mirror.example/anaconda/cloud/
  lab: https://lab.example/t/$TOKEN/${NOTSET}/$NO-$$
  lab/deep: file:///srv
default_channels:
  - https://mirror.example/anaconda/pkgs/main
  - r
ssl_verify: false
show_channel_urls: true
`))
	testenv.Write(t, extra, []byte("channel_alias: https://alias.example/conda/\ncustom_multichannels:\n  both: [conda-forge, /srv/own]\n"+
		"mirrored_channels:\n  bio: [https://near.example/t/$TOKEN/bio/, oci://ghcr.io/bio, https://far.example/bio]\n  one: [oci://ghcr.io/one]\n"))
	rc, err := ReadCondarc(func(k string) string { return env[k] })
	testenv.Check(t, err)
	if !slices.Equal(rc.Channels, []string{"conda-forge", "defaults"}) {
		t.Errorf("Channels = %q", rc.Channels)
	}
	if got := rc.Mirrors(); len(got) != 1 || !slices.Equal(got[0], []string{"https://near.example/t/t0ken/bio", "oci://ghcr.io/bio", "https://far.example/bio"}) {
		t.Errorf("Mirrors() = %q", got)
	}
	for name, want := range map[string]string{
		"conda-forge":           "https://mirror.example/anaconda/cloud/conda-forge",
		"conda-forge/label/dev": "https://mirror.example/anaconda/cloud/conda-forge/label/dev",
		"bio":                   "https://near.example/t/t0ken/bio",
		"bio/label/dev":         "https://near.example/t/t0ken/bio/label/dev",
		"biology":               "https://alias.example/conda/biology",
		"one":                   "oci://ghcr.io/one",
		"conda-forge2":          "https://alias.example/conda/conda-forge2",
		"lab":                   "https://lab.example/t/t0ken/${NOTSET}/$NO-$$/lab",
		"lab/deep/er":           "file:///srv/lab/deep/er",
		"defaults":              "https://mirror.example/anaconda/pkgs/main https://alias.example/conda/r",
		"both":                  "https://mirror.example/anaconda/cloud/conda-forge /srv/own",
		"https://x.example/ch":  "https://x.example/ch",
		"./here":                "./here",
	} {
		if got := strings.Join(rc.Locate([]string{name}), " "); got != want {
			t.Errorf("Locate(%q) = %q; want %q", name, got, want)
		}
		if rc.Knows(name) != (want != name) {
			t.Errorf("Knows(%q) = %v", name, rc.Knows(name))
		}
	}
	var none Condarc
	if got := none.Locate([]string{"defaults", "a"}); !slices.Equal(got, []string{"defaults", "a"}) || none.Knows("defaults") {
		t.Errorf("without a file: %q", got)
	}
}

func TestCondarcWrong(t *testing.T) {
	for text, want := range map[string]string{
		"channels: {a: b}":                      "line 1",
		"a: &x 1\nb: *x\n":                      "aliases",
		"channels: [a\n":                        "yaml",
		"x: " + strings.Repeat("x", maxCondarc): "larger than",
		"custom_channels: [a]":                  "line 1",
	} {
		file := filepath.Join(t.TempDir(), "rc")
		testenv.Write(t, file, []byte(text))
		_, err := ReadCondarc(func(k string) string { return map[string]string{"CONDARC": file}[k] })
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), file) {
			t.Errorf("%.30q: %v; want %q and the file", text, err, want)
		}
	}
}

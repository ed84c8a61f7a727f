package job

import (
	"strings"
	"testing"
)

func TestLabel(t *testing.T) {
	for in, want := range map[string]string{
		"Train_Big.x": "train-big-x", "-a-": "a", "9lives": "j9lives", "": "j",
		strings.Repeat("very", 20) + "-261122-003548": "veryveryveryveryveryveryveryv-261122-003548",
	} {
		got := Label(in)
		if (got != want && !(len(in) > 45 && strings.HasSuffix(got, "-261122-003548"))) || len(got) > 45 || !dnsLabel().MatchString(got) {
			t.Errorf("label(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestParsePods(t *testing.T) {
	for _, in := range []string{"data", "/gpfs:/x", "data:x", "data:/", "data:/a/../b", "Data:/x", "a:/x:y"} {
		if v, err := ParseVolume(in); err == nil {
			t.Errorf("ParseVolume(%q) = %+v", in, v)
		}
	}
	if v, err := ParseVolume("data:/x/:ro"); err != nil || v != (Volume{"data", "/x", true}) {
		t.Errorf("ParseVolume = %+v, %v", v, err)
	}
	if v, err := ParseVolume("scratch:/x"); err != nil || v != (Volume{"", "/x", false}) {
		t.Errorf("ParseVolume = %+v, %v", v, err)
	}
	for _, in := range []string{"x", "x=0", "x=70000", "8000", "a--b=1", "Web=1", "123=4", "waytoolongaportname=1"} {
		if p, err := ParsePort(in); err == nil {
			t.Errorf("ParsePort(%q) = %+v", in, p)
		}
	}
	for _, in := range []string{"A", "a:", "a:b", "a:/", ""} {
		if s, err := ParseSecret(in); err == nil {
			t.Errorf("ParseSecret(%q) = %+v", in, s)
		}
	}
	if s, err := ParseSecret("keys:/x/"); err != nil || s != (Secret{"keys", "/x"}) {
		t.Errorf("ParseSecret = %+v, %v; want the path /x, as for volumes", s, err)
	}
	if s, err := ParseSecret("keys"); err != nil || s != (Secret{"keys", ""}) {
		t.Errorf("ParseSecret = %+v, %v; want no path", s, err)
	}
}

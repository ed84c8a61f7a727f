package solve

import (
	"encoding/json"
	"strings"
	"testing"

	"hpcc/conda/fetch"
)

func TestSpec(t *testing.T) {
	rec := func(s string) *Record {
		f := strings.Fields(s + " 0")
		return &Record{Name: f[0], Version: f[1], Build: f[2], BuildNumber: 3, Subdir: "linux-64", Origin: "https://conda.anaconda.org/conda-forge", File: fetch.File{FileName: f[0] + "-" + f[1] + "-" + f[2] + ".conda", MD5: "abcd"},
			TrackFeatures: features{"nomkl", "slow"}}
	}
	for _, c := range []struct{ spec, yes, no string }{
		{"a", "a 1 | a 2!3 x", "b 1"},
		{"A", "a 1", ""},
		{"a 1.8", "a 1.8 | a 1.8.0", "a 1.8.1 | a 1.80"},
		{"a==1.8", "a 1.8 | a 1.8.0 z", "a 1.8.1"},
		{"a ==1.8", "a 1.8", "a 1.8.1"},
		{"a=1.8", "a 1.8 | a 1.8.1 | a 1.8a", "a 1.80 | a 1.9"},
		{"a =1.8", "a 1.8 | a 1.8.1", "a 1.80"},
		{"a 1.8.*", "a 1.8 | a 1.8.1", "a 1.80"},
		{"a 1.8*", "a 1.8 | a 1.8.1", "a 1.80"},
		{"a=1.8*", "a 1.8 | a 1.8.1", "a 1.80"},
		{"openssl=1.1.1", "openssl 1.1.1w", "openssl 1.1.0 | openssl 1.1.10"},
		{"openssl 1.1.1.*", "openssl 1.1.1w | openssl 1.1.1", "openssl 3.0"},
		{"a=1.8=b_0", "a 1.8 b_0 | a 1.8 B_0", "a 1.8.1 b_0 | a 1.8 b_1"},
		{"a 1.8 b_0", "a 1.8 b_0", "a 1.8.1 b_0 | a 1.8 b_1"},
		{"a==1.8=b_0", "a 1.8 b_0", "a 1.8.1 b_0 | a 1.8 b_1"},
		{"a=1.8.*=b_0", "a 1.8 b_0 | a 1.8.7 b_0", "a 1.9 b_0"},
		{"a * *_cp39", "a 3.9 3_cp39 | a 1 _cp39", "a 3.9 3_cp310"},
		{"blas=*=openblas", "blas 1.0 openblas", "blas 1.0 mkl"},
		{"a >=1.8,<2.0a0", "a 1.8 | a 1.99", "a 2.0 | a 2.0a1 | a 1.7"},
		{"a  >=1.8, <2", "a 1.8 | a 1.99", "a 2.0 | a 1.7"},
		{"a>=1.8,<2", "a 1.8", "a 2.0"},
		{"a >= 1.8", "a 1.8", "a 1.7"},
		{"a >=1.8 b*", "a 1.9 b1", "a 1.9 c1 | a 1.7 b1"},
		{"a>=1.8=b*", "a 1.9 b1", "a 1.9 c1 | a 1.7 b1"},
		{"a 1.0|1.2.*", "a 1.0 | a 1.2.7", "a 1.1 | a 1.0.7"},
		{"a =1.0|=1.2", "a 1.0.1 | a 1.2.7", "a 1.1"},
		{"a <1|>=3,<4", "a 0.9 | a 3.5", "a 2 | a 4"},
		{"a (<1|>=3),!=3.1", "a 0.9 | a 3.5 | a 3.1.1", "a 2 | a 3.1"},
		{"a !=1.1.*", "a 1.2", "a 1.1 | a 1.1.7"},
		{"a !=1.1", "a 1.2 | a 1.1.7", "a 1.1.0"},
		{"a ~=1.4.2", "a 1.4.2 | a 1.4.10", "a 1.5 | a 1.4.1"},
		{"a ~=3.0", "a 3.0 | a 3.10", "a 4.0 | a 2.9"},
		{"a >1.1", "a 1.1.1 | a 1.1post1", "a 1.1.0"},
		{"a <=1.1", "a 1.1.0 | a 1.1rc1", "a 1.1.1"},
		{"a >=1.1.*", "a 1.1", "a 1.0"},
		{"a 1.*.3", "a 1.2.3 | a 1.0.0.3", "a 1.2.4"},
		{"a ^1.(2|3,4)$", "a 1.2", "a 1.3"},
		{"a 1.8[build=b*]", "a 1.8 b1", "a 1.8 c1"},
		{`a[version=">=1.8,<2", build='b|']`, "", "a 1.9 b1"},
		{`a[version='>=1.8,<2',build=^b.*$]`, "a 1.9 b1", "a 2 b1 | a 1.9 c1"},
		{"a[build_number=3]", "a 1", ""},
		{"a[build_number='>=4']", "", "a 1"},
		{"a[md5=ABCD]", "a 1", ""},
		{"a[md5=00]", "", "a 1"},
		{"a[track_features='slow nomkl']", "a 1", ""},
		{"a[track_features=fast]", "", "a 1"},
		{"a[fn=a-1-b.conda]", "a 1 b", "a 1 c"},
		{"conda-forge::a", "a 1", ""},
		{"conda-forge/linux-64::a >=1", "a 1", ""},
		{"conda-forge/noarch::a", "", "a 1"},
		{"https://conda.anaconda.org/conda-forge::a=1", "a 1", ""},
		{"main::a", "", "a 1"},
		{"*::a", "a 1", ""},
		{"*/linux-64::a", "a 1", ""},
		{"*/noarch::a", "", "a 1"},
		{"linux-64::a", "a 1", ""},
		{"noarch::a", "", "a 1"},
		{"a = 1.8 = b_0", "a 1.8 b_0", "a 1.8 b_1 | a 1.9 b_0"},
		{"a ( < 1 | >= 3 ) , != 3.1", "a 0.9 | a 3.5", "a 2 | a 3.1"},
		{"a >= 1.8 , < 2", "a 1.8", "a 2.0"},
		{"x264>=1!152", "x264 1!152 | x264 1!157", "x264 152"},
		{"a[channel=main]", "", "a 1"},
		{"conda-forge::a[subdir=linux-64]", "a 1", ""},
		{"a >=1  # as the others", "a 1", ""},
		{"x264 >=1!157.20191217,<1!158", "x264 1!157.20191217 | x264 1!157.20200101", "x264 157.20191217 | x264 1!158"},
		{"pytorch 2.1.2+cu118", "pytorch 2.1.2+cu118", "pytorch 2.1.2"},
		{"pytorch=2.1.2", "pytorch 2.1.2+cu118", "pytorch 2.1.3"},
	} {
		s, err := ParseSpec(c.spec)
		if err != nil {
			t.Error(err)
			continue
		}
		for want, list := range map[bool]string{true: c.yes, false: c.no} {
			for _, text := range strings.Split(list, " | ") {
				if text == "" {
					continue
				}
				if r := rec(text); s.matches(r, mustVersion(t, r.Version)) != want {
					t.Errorf("%q matches %q = %v; want %v", c.spec, text, !want, want)
				}
			}
		}
	}
}

func TestParseSpecRefuses(t *testing.T) {
	for in, want := range map[string]string{
		"":                                    "is not a package name",
		"=1":                                  "is not a package name",
		"a*":                                  "is not a package name",
		"../a":                                "is not a package name",
		"a >=":                                "missing version",
		"a >=1,":                              "missing version",
		"a (>=1":                              "unclosed",
		"a >=1)":                              "at the end",
		"a[version=1":                         "not closed",
		"a[version]":                          "key=value",
		"a[version='1]":                       "unclosed quote",
		"a[version='1' build=2]":              "missing comma",
		"a[when=python]":                      "unknown key",
		"a[license=MIT]":                      "unsupported key license",
		"a 1..2":                              "empty",
		"a ~=1.*":                             "is invalid",
		"a 1 2 3":                             "has a blank",
		"a ~=1":                               "needs two parts",
		"a ^(1$":                              "invalid regular expression",
		"a ^1":                                "begin with",
		"c:n:a":                               "two colons",
		"c:a":                                 "two colons",
		"https://x/a-1-0.conda":               "URL",
		strings.Repeat("a", 5000):             "bytes",
		"a " + strings.Repeat("(", 100) + "1": "too many",
	} {
		if s, err := ParseSpec(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("ParseSpec(%q) = %v, %v; want an error with %q", in, s, err, want)
		}
	}
}

func FuzzMatchSpec(f *testing.F) {
	for _, s := range []string{"a", "c/linux-64::a >=1.8,<2.0a0 b*", "a=1.8=b", "a[version='>=1|(2,3)', build=^b$]", "a ~=1.2|!=3.*", "a 1.*.2 *_cp39", "a  =1"} {
		f.Add(s, "1.8.1", "b_0")
	}
	f.Fuzz(func(t *testing.T, text, number, build string) {
		s, err := ParseSpec(text)
		if err != nil {
			return
		}
		if !IsName(s.Name) {
			t.Errorf("ParseSpec(%q) has the name %q", text, s.Name)
		}
		if again, err := ParseSpec(s.text); err == nil && again.Name != s.Name {
			t.Errorf("ParseSpec(%q) has the name %q, its text %q has %q", text, s.Name, s.text, again.Name)
		}
		v, err := parseVersion(number)
		if err != nil {
			return
		}
		r := &Record{Name: s.Name, Version: number, Build: build, Subdir: "linux-64"}
		if s.matches(r, v) && s.matches(&Record{Name: s.Name + "x", Version: number, Build: build}, v) {
			t.Errorf("%q matches another name", text)
		}
	})
}

func TestTrackFeatures(t *testing.T) {
	for in, want := range map[string]string{`"a b,c"`: "a|b|c", `["a","b c"]`: "a|b c", `null`: "", `""`: "", `7`: "", `{"a":1}`: "", `[7]`: ""} {
		var r Record
		if err := json.Unmarshal([]byte(`{"track_features": `+in+`}`), &r); err != nil || strings.Join(r.TrackFeatures, "|") != want {
			t.Errorf("track_features %s = %q, %v; want %q", in, r.TrackFeatures, err, want)
		}
	}
}

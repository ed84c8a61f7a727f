package metrics

import (
	"encoding/json"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"hpcc/testdata/helpers/testenv"
)

const head = `{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","command":["true"],"machine":{"host":"h","architecture":"amd64","cpus":2,"memory_bytes":1,"kernel":"6"},"limits":{"cpus":2}` + "}\n"

func written(t *testing.T, text string) string {
	file := filepath.Join(t.TempDir(), "run.jsonl")
	testenv.Check(t, os.WriteFile(file, []byte(text), 0o644))
	return file
}

func TestReadRecord(t *testing.T) {
	const sample, foot = `{"kind":"sample","t":0.5,"cpu_s":0.25}` + "\n", `{"kind":"footer","exit":3,"wall_s":2,"memory_from":"rss"}` + "\n"
	for _, c := range []struct {
		name, text      string
		samples, others int
		exit            int // -2: no footer
		torn            bool
		err             string
	}{
		{"whole", head + sample + sample + foot, 2, 0, 3, false, ""},
		{"while it runs", head + sample, 1, 0, -2, false, ""},
		{"its last line cut off", head + sample + sample[:20], 1, 0, -2, true, ""},
		{"its last line without an end", head + sample + strings.TrimSuffix(foot, "\n"), 1, 0, 3, false, ""},
		{"a later version", strings.Replace(head, `1,"start"`, `9,"start"`, 1) + `{"kind":"mark","x":1}` + "\n" + foot, 0, 1, 3, false, ""},
		{"empty", "", 0, 0, 0, false, ":1: no header"},
		{"no record", "hello\nworld\n", 0, 0, 0, false, ":1: invalid character"},
		{"no header", sample, 0, 0, 0, false, ":1: no header"},
		{"an invalid line", head + "oh\n" + foot, 0, 0, 0, false, ":2: invalid character"},
		{"two headers", head + head, 0, 0, 0, false, ":2: a second header"},
		{"two footers", head + foot + sample + foot, 0, 0, 0, false, ":4: a second footer"},
		{"a wrong type", head + `{"kind":"footer","exit":"x"}` + "\n", 0, 0, 0, false, ":2: json: cannot unmarshal string"},
		{"a line without end", head + strings.Repeat("x", maxLine+1), 0, 0, 0, false, ":2: a line of more than"},
	} {
		r, err := ReadRecord(written(t, c.text), true)
		switch {
		case c.err != "":
			if err == nil || !strings.Contains(err.Error(), "run.jsonl"+c.err) {
				t.Errorf("%s: %v; want %q", c.name, err, c.err)
			}
		case err != nil:
			t.Errorf("%s: %v", c.name, err)
		case len(r.Samples) != c.samples || len(r.Other) != c.others || r.Torn != c.torn || (r.Footer == nil) != (c.exit == -2) || (r.Footer != nil && r.Footer.Exit != c.exit):
			t.Errorf("%s: %d samples, %d others, footer %v, torn %v", c.name, len(r.Samples), len(r.Other), r.Footer, r.Torn)
		}
	}
	if r, err := ReadRecord(written(t, head+sample+foot), false); err != nil || len(r.Samples) != 0 || r.Footer == nil {
		t.Errorf("without samples: %+v, %v", r, err)
	}
}

// TestFirstRecord: testdata/first.jsonl is a record of the first measuring version
// (9fc102e), except for names of the machine.
func TestFirstRecord(t *testing.T) {
	r, err := ReadRecord("testdata/first.jsonl", true)
	testenv.Check(t, err)
	h, f := r.Header, r.Footer
	if h.Version != 1 || h.Image != "./root" || len(h.Command) != 3 || h.Machine.CPUs != 2 || h.Limits.Cgroup != "v1" || !h.Limits.Shared || h.Start.IsZero() {
		t.Errorf("header %+v", h)
	}
	if len(r.Samples) != 7 || r.Samples[3].At != 0.483 || r.Samples[3].CPU != 0.34 || r.Samples[3].RSS != 18894848 || r.Samples[3].Pressure == nil || !r.Samples[3].Pressure.Machine {
		t.Errorf("samples %+v", r.Samples)
	}
	if f == nil || f.Exit != 3 || f.Wall != 0.755444052 || f.Usage.User != 0.351648 || f.Memory != 11427840 || f.MemoryFrom != "pss" || len(f.Unknown)+len(h.Unknown)+len(r.Other) != 0 {
		t.Errorf("footer %+v", f)
	}
}

// TestUnknownMembers: members of later versions are preserved when a record is written
// again.
func TestUnknownMembers(t *testing.T) {
	text := strings.Replace(head, `"limits"`, `"later":{"a":[1]},"limits"`, 1)
	r, err := ReadRecord(written(t, text), true)
	testenv.Check(t, err)
	again, err := json.Marshal(r.Header)
	testenv.Check(t, err)
	var want, got map[string]any
	if json.Unmarshal([]byte(text), &want) != nil || json.Unmarshal(again, &got) != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("read and written:\n%s\nwant\n%s", again, text)
	}
	if b, err := json.Marshal(Footer{Kind: kindFooter, End: time.Unix(0, 0).UTC()}); err != nil || !json.Valid(b) {
		t.Errorf("%s, %v", b, err)
	}
}

// TestUnwanted: unrequested lines are not kept, and unknown ones only up to a limit.
func TestUnwanted(t *testing.T) {
	head, foot := `{"kind":"header","version":1}`+"\n", `{"kind":"footer","exit":3}`+"\n"
	lines := strings.Repeat(`{ "t":1,"kind":"sample"}`+"\n"+`{"kind":"later"}`+"\n", 5)
	r, err := readRecord(strings.NewReader(head+lines+foot), false)
	if err != nil || len(r.Samples)+len(r.Other) > 0 || r.Footer == nil || r.Footer.Exit != 3 {
		t.Errorf("%+v, %v; want a header and a footer alone", r, err)
	}
	long := `{"kind":"later","x":"` + strings.Repeat("x", maxLine-100) + `"}` + "\n"
	much := strings.Repeat(long, maxOther/len(long)+1)
	if _, err = readRecord(strings.NewReader(head+much+foot), true); err == nil || !strings.Contains(err.Error(), "of unknown lines") {
		t.Errorf("%v; want a bound", err)
	}
	if r, err = readRecord(strings.NewReader(head+much+foot), false); err != nil || r.Footer == nil {
		t.Errorf("%v; want no error without samples", err)
	}
}

// wild is a record in which every number is as large as JSON allows.
var wild = strings.NewReplacer("F", "1.7e308", "I", "9223372036854775807").Replace(`{"kind":"header","version":1,"start":"2026-11-22T04:00:00Z","job":{"pull_s":F},"asked":{"cpus":I,"memory_bytes":I,"gpus":I,"time_s":F},` +
	`"machine":{"cpus":I,"memory_bytes":I,"gpus":[{"memory_bytes":I}]},"limits":{"cpus":F,"memory_bytes":I}}
{"kind":"sample","t":-F,"cpu_s":-F,"rss_bytes":-I}
{"kind":"sample","t":F,"cpu_s":F,"system_s":F,"rss_bytes":I,"rss_peak_bytes":I,"pss_bytes":I,"swap_bytes":I,"processes":I,"threads":I,"read_bytes":I,"written_bytes":I,"net_in_bytes":I,"net_out_bytes":I,` +
	`"cgroup":{"cpu_s":F,"memory_bytes":I,"cache_bytes":I,"memory_peak_bytes":I,"read_bytes":I,"written_bytes":I,"throttled_s":F,"throttles":I,"oom_kills":I},"pressure":{"cpu_s":F,"memory_s":F,"io_s":F},` +
	`"gpus":[{"utilisation":F,"memory_bytes":I,"power_w":F}]}
{"kind":"footer","wall_s":F,"exit":-1,"usage":{"user_s":F,"system_s":F,"max_rss_bytes":I,"read_blocks":I,"written_blocks":I,"involuntary_switches":I},"memory_peak_bytes":I,"read_bytes":I,"written_bytes":I,` +
	`"net_in_bytes":I,"net_out_bytes":I,"processes":I,"threads":I,"cgroup":{"cpu_s":F},"pressure":{"io_s":F},"gpus":[{"utilisation_mean":F,"utilisation_p95":F,"memory_peak_bytes":I,"energy_j":F}],"samples":I,"measuring_s":F}
`)

// TestWildNumbers: all readers clamp numbers to their bounds.
func TestWildNumbers(t *testing.T) {
	file := written(t, wild)
	r, err := ReadRecord(file, true)
	tail := &Tail{}
	if terr := tail.Look(file); err != nil || terr != nil || len(r.Samples) != 2 || len(tail.Samples) != 2 || tail.Footer == nil {
		t.Fatalf("%+v, %v; %+v, %v", r, err, tail, terr)
	}
	if r.Footer.Exit != -1 {
		t.Errorf("exit status %d", r.Footer.Exit)
	}
	r.Footer.Exit, tail.Footer.Exit = 0, 0
	for _, v := range []any{r.Header, r.Samples, r.Footer, tail.Header, tail.Samples, tail.Footer} {
		checkBounds(t, reflect.ValueOf(v))
	}
}

// checkBounds checks all numbers of a value.
func checkBounds(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			checkBounds(t, v.Elem())
		}
	case reflect.Slice:
		for i := range v.Len() {
			checkBounds(t, v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() && f.Type != reflect.TypeFor[time.Time]() {
				if x := v.Field(i); (x.CanInt() && (x.Int() < 0 || x.Int() > mostCounter)) || (x.CanFloat() && (x.Float() < 0 || x.Float() > mostWork)) {
					t.Errorf("%v.%s is %v", v.Type(), f.Name, x)
				}
				checkBounds(t, v.Field(i))
			}
		}
	}
}

func FuzzReadRecord(f *testing.F) {
	f.Add(head + `{"kind":"sample","t":1}` + "\n" + `{"kind":"footer"`)
	f.Add("")
	f.Add(wild)
	f.Fuzz(func(t *testing.T, text string) {
		r, err := readRecord(strings.NewReader(text), true)
		if err != nil {
			return
		}
		b, err := json.Marshal(r.Header)
		testenv.Check(t, err)
		if _, err := readRecord(strings.NewReader(string(b)), true); err != nil {
			t.Errorf("cannot read the written record: %v\n%s", err, b)
		}
	})
}
